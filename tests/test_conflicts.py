import pytest

from programs.conflicts import disagree, prefer_current, settle
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


def test_two_releases_are_two_documents() -> None:
    old = issue("a", "Release notes FW 4.1.3", type="firmware", status="superseded", version="4.1.3")
    new = issue("b", "Release notes FW 4.2.1", type="firmware", status="current", version="4.2.1")
    assert prefer_current((old, new), (old, new), "Which release is it?") == (old, new)


def dated(name: str, text: str, date: str = "") -> Hit:
    return issue(name, name, text, **({"date": date} if date else {}))


def test_the_newest_of_sources_that_disagree_comes_first() -> None:
    old = dated("minutes", "until 31 March 2026", "2025-10-07")
    new = dated("notice", "until 30 June 2026", "2025-12-08")
    assert settle([old, new]) == ((new, old), False)


@pytest.mark.parametrize("dates", [("2024-10-02", "2024-10-02"), ("2024-10-02", ""), ("", "")])
def test_without_a_newest_one_it_stays_open_which_holds(dates: tuple[str, str]) -> None:
    manual, faq = dated("manual", "20 minutes", dates[0]), dated("faq", "30 minutes", dates[1])
    held, is_open = settle([manual, faq])
    assert is_open
    assert sorted(hit.passage.title for hit in held) == ["faq", "manual"]


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
