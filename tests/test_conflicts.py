import pytest

from programs.conflicts import disagree, find_points, prefer_current, settle
from retrievers.records import Hit, Passage


def issue(name: str, title: str, text: str = "", **metadata: str) -> Hit:
    return Hit(Passage(f"{name}#0", name, title, text, {"type": "policy"} | metadata), 1.0, 1)


OLD = issue("v1", "SEC-02 Passwords (2023)", "10 characters", status="superseded", date="2023-01-16", version="v1")
NEW = issue("v2", "SEC-02 Passwords (2025)", "14 characters", status="current", date="2025-01-20", version="v2")
OTHER = issue("other", "SEC-03 Keys", status="current", date="2025-01-20")
OLD_ZH = issue("zh1", "QP-31 来料检验规程（2023 版）", "48 小时", status="已作废", date="2023-02-10")
NEW_ZH = issue("zh2", "QP-31 来料检验规程（2025 版）", "24 小时", status="现行", date="2025-02-10")


@pytest.mark.parametrize(
    ("held", "context", "kept"),
    [
        ((OLD,), (OLD, NEW), (NEW,)),
        ((OLD, NEW), (OLD, NEW), (NEW,)),
        ((NEW, OTHER, OLD), (NEW, OTHER, OLD), (NEW, OTHER)),
        ((OLD,), (OLD, OTHER), (OLD,)),  # no other issue of it was found
        ((OTHER,), (OLD, NEW, OTHER), (OTHER,)),
        ((OLD_ZH,), (NEW_ZH, OLD_ZH), (NEW_ZH,)),
    ],
)
def test_the_current_issue_takes_the_place_of_a_superseded_one(
    held: tuple[Hit, ...], context: tuple[Hit, ...], kept: tuple[Hit, ...]
) -> None:
    assert prefer_current(held, context, "How long must a password be in 2026?") == kept


@pytest.mark.parametrize(
    "question",
    [
        "How long had a password to be before?",
        "How long did a password have to be in 2024?",
        "What does v1 of SEC-02 say?",
        "以前密码要几位？",
    ],
)
def test_a_question_about_the_past_keeps_the_old_issue(question: str) -> None:
    assert prefer_current((OLD, NEW), (OLD, NEW), question) == (OLD, NEW)


FIRST = issue("e2-1", "E2 manual", "# E2\n\nIssue 1, 2022-01-03.\n\nThe valve opens at 1.7 bar.")
SECOND = issue("e2-2", "E2 manual", "# E2\n\nIssue 2, 2024-06-01. Replaces issue 1.\n\nThe valve opens at 1.9 bar.")
THIRD = issue("e2-3", "E2 manual", "# E2\n\nIssue 3. Replaces issue 2 of 2024-06-01.\n\nThe valve opens at 2.1 bar.")
RETIRED = issue("e2-r", "E2 manual, issue 2", "Issue 2. Superseded by issue 3 of 2026.\n\nThe valve opens at 1.9 bar.")
PLAIN = issue("e2-p", "E2 manual, issue 3", "Issue 3, 2026-02-11.\n\nThe valve opens at 2.1 bar.")
ZH_FIRST = issue("w3-1", "W3 手册", "第 1 版。滤芯每 6 个月更换。")
ZH_SECOND = issue("w3-2", "W3 手册", "第 2 版，代替第 1 版。滤芯每 4 个月更换。")


@pytest.mark.parametrize(
    ("context", "kept"),
    [
        ((SECOND, THIRD), (THIRD,)),
        ((FIRST, SECOND, THIRD), (THIRD,)),
        ((RETIRED, PLAIN), (PLAIN,)),
        ((ZH_FIRST, ZH_SECOND), (ZH_SECOND,)),
        ((FIRST, THIRD), (FIRST, THIRD)),  # neither speaks of the other
        ((RETIRED, OTHER), (RETIRED, OTHER)),
    ],
)
def test_an_issue_is_superseded_by_what_its_own_or_the_new_one_s_first_lines_say(
    context: tuple[Hit, ...], kept: tuple[Hit, ...]
) -> None:
    assert prefer_current(context, context, "At what pressure does the valve open?") == kept


def test_a_question_for_an_issue_by_its_number_keeps_it() -> None:
    context = (SECOND, THIRD)
    assert prefer_current(context, context, "What pressure does issue 2 of the E2 manual give?") == context


def test_reports_of_one_title_that_tell_of_a_replacement_are_not_issues() -> None:
    one = issue("r1", "Service report", "Version 2 of the pump runs.")
    other = issue("r2", "Service report", "The technician replaces the pump of version 3.")
    assert prefer_current((one, other), (one, other), "Which pump runs?") == (one, other)


def test_two_releases_are_two_documents() -> None:
    old = issue("a", "Release notes FW 4.1.3", type="firmware", status="superseded", version="4.1.3")
    new = issue("b", "Release notes FW 4.2.1", type="firmware", status="current", version="4.2.1")
    assert prefer_current((old, new), (old, new), "Which release is it?") == (old, new)


def dated(name: str, text: str, date: str = "") -> Hit:
    return issue(name, name, text, **({"date": date} if date else {}))


def test_the_newest_of_sources_that_disagree_comes_first() -> None:
    old = dated("minutes", "until 31 March 2026", "2025-10-07")
    new = dated("notice", "until 30 June 2026", "2025-12-08")
    assert settle([old, new], ()) == ((new, old), False)


@pytest.mark.parametrize("dates", [("2024-10-02", "2024-10-02"), ("2024-10-02", ""), ("", "")])
def test_without_a_newest_one_it_stays_open_which_holds(dates: tuple[str, str]) -> None:
    manual, faq = dated("manual", "20 minutes", dates[0]), dated("faq", "30 minutes", dates[1])
    held, is_open = settle([manual, faq], ())
    assert is_open
    assert sorted(hit.passage.title for hit in held) == ["faq", "manual"]


@pytest.mark.parametrize(
    ("said", "title"),
    [
        ("This notice replaces the sheet of May.", "Lamp sheet (May)"),
        ("Replaces Lamp sheet (May).", "Lamp sheet (May)"),
        ("本表取代五月版。", "灯具单页（5 月）"),
        ("自即日起代替《灯具单页》。", "灯具单页"),
    ],
)
def test_a_source_that_says_it_replaces_another_holds_over_it_whatever_the_dates_say(said: str, title: str) -> None:
    old, new = issue("old", title, "4 W"), issue("new", title.replace("May", "June").replace("5", "6"), f"{said} 5 W")
    assert settle([old, new], ()) == ((new, old), False)
    later = issue("late", title, "4 W", date="2026-01-01")
    assert settle([later, new], ())[0] == (new, later)


@pytest.mark.parametrize(
    "said", ["The fuse replaces the lamp.", "不替代灯具单页。", "It is replaced by the lamp sheet."]
)
def test_to_speak_of_replacing_is_not_enough(said: str) -> None:
    one, other = issue("a", "灯具单页" if "灯" in said else "Lamp sheet", "4 W"), issue("b", "Fuses", f"{said} 5 W")
    assert settle([one, other], ())[1]


def test_a_third_source_decides_by_being_newer_and_not_by_repeating_one() -> None:
    manual, faq = dated("manual", "20 minutes", "2024-10-02"), dated("faq", "30 minutes", "2024-10-02")
    quotes = ["20 minutes", "30 minutes"]
    assert settle([manual, faq, dated("copy", "30 minutes", "2024-10-02")], quotes)[1]
    notice = dated("notice", "30 minutes", "2025-01-01")
    assert settle([manual, faq, notice], quotes) == ((notice, manual, faq), False)
    undated = dated("undated", "30 minutes")
    assert not settle([manual, notice, undated], quotes)[1]  # it says what the newest says
    assert settle([manual, notice, dated("undated", "20 minutes")], quotes)[1]


@pytest.mark.parametrize(
    ("quotes", "texts", "points"),
    [
        (["warm-up of 20 minutes", "Allow 30 minutes"], ["warm-up of 20 minutes", "Allow 30 minutes"],
         ("20 minutes", "30 minutes")),
        (["整机 0.92 kg，IP20", "重0.97kg，IP20"], ["整机 0.92 kg，IP20", "重0.97kg，IP20"], ("0.92 kg", "0.97kg")),
        (["E-1024: 3 lamps", "E-1024: 4 lamps"], ["E-1024: 3 lamps", "E-1024: 4 lamps"], ("3 lamps", "4 lamps")),
        (["is allowed", "is forbidden"], ["it is allowed", "it is forbidden"], ("is allowed", "is forbidden")),
        ([], ["a"], ()),
    ],
)  # fmt: skip
def test_points_are_the_values_that_not_all_sources_state(
    quotes: list[str], texts: list[str], points: tuple[str, ...]
) -> None:
    assert find_points(quotes, [dated(f"d{n}", text) for n, text in enumerate(texts)]) == points


@pytest.mark.parametrize(
    ("quotes", "expected"),
    [
        (["20 minutes", "30 minutes"], True),
        (["is allowed", "is forbidden"], True),
        (["20 minutes"], False),
        (["twenty minutes", "20 minutes"], False),
        (["no such words", "20 minutes"], False),
        ([], False),
    ],
)
def test_sources_disagree_where_two_were_quoted_and_differ(quotes: list[str], expected: bool) -> None:
    sources = [dated("a", "20 minutes, it is allowed"), dated("b", "30 minutes, it is forbidden")]
    sources += [dated("c", "twenty minutes")] if "twenty minutes" in quotes else []
    assert disagree(quotes, sources) is expected
