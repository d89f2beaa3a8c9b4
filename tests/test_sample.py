"""The sample corpus and its gold set hold what they promise: size, evidence, absence, no leaks, real documents."""

import json
import re
import unicodedata
from collections import Counter
from itertools import combinations, pairwise, product
from typing import Any

import pytest

from retrievers.documents import read_documents
from trainsets.answers import answer_score
from trainsets.cases import SAMPLE_DIR, SPLITS, Case, load_sample
from trainsets.checks import check_cases, check_leaks

KINDS = (
    *("lookup", "single_hop", "multi_hop", "comparison", "temporal", "aggregate", "conflict"),
    *("unanswerable", "chitchat", "follow_up"),
)
TYPES = (
    *("manual", "error_code", "ticket", "firmware", "supplier", "contract", "policy", "meeting", "price_list"),
    *("report", "faq", "certificate", "notice"),
)
COMPUTED = ("comparison", "aggregate")

# Read by a person: the other document names the same words, but does not answer the question.
REVIEWED_DOUBTS = {"en-train-033", "zh-train-040", "en-dev-015", "zh-test-004", "zh-test-030", "zh-test-038"}

# What an unanswerable case is about (a pattern that some document holds, empty if it is out of scope), and what a
# document about it would have to say to answer (a pattern that none of them holds).
ABSENT = {
    "en-train-018": ("FK-24", r"(pieces|units) (per|a) year|yearly|annual"),
    "en-train-019": ("IO-16D", r"MTBF|between failures"),
    "en-train-020": ("FK-27", r"(?i)signed|signature|signator"),
    "en-train-021": ("", r"Australia|Canberra"),
    "en-train-063": ("[Hh]ead of support|support", r"salar|wage"),
    "en-train-064": ("INC-778872", r"(?i)serial|S/N"),
    "en-train-065": ("Suzhou", r"(?i)hotel[^.]{0,60}suzhou|suzhou[^.]{0,60}hotel"),
    "en-train-066": ("", r"tomorrow|weather forecast"),
    "en-train-076": ("PV-10", r"(?i)advert|campaign"),
    "zh-train-015": ("FK-38", r"元|单价|价格"),
    "zh-train-016": ("KX-330", r"(?i)profinet"),
    "zh-train-045": ("P-4561", r"元|进价|单价"),
    "zh-train-046": ("KX-350", r"(?i)防爆|ATEX|IECEx"),
    "zh-train-047": ("INC-778853", r"赔付|实赔|赔了|赔款"),
    "zh-train-048": ("", r"世界杯|足球"),
    "zh-train-049": ("", r"珠穆朗玛"),
    "en-dev-011": ("P-5102", r"(?i)rush|express|surcharge"),
    "en-dev-012": ("NX-400", r"NX-400[^.\n]{0,60}IP ?\d\d|Degree of protection.{0,20}NX-400"),
    "en-dev-013": ("E-102[45]", r"E-1026"),
    "en-dev-052": ("GW-5", r"GW-5[^\n]{0,80}(Nm|torque)"),
    "en-dev-053": ("TR-210", r"(?i)\bfail(ed|ures?)\b"),
    "en-dev-054": ("FK-25", r"(?i)discount|early payment"),
    "en-dev-055": ("", r"football"),
    "zh-dev-012": ("F-310[35]", r"F-3104"),
    "zh-dev-013": ("KX-310", r"华中"),
    "zh-dev-034": ("FK-34", r"违约金|逾期"),
    "zh-dev-035": ("屿光", r"光缆[^\n]*\d元|元[^\n]*光缆"),
    "zh-dev-036": ("", r"股票"),
    "zh-dev-042": ("KX-370", r"KX-370[^\n]*(元|售价|定价)"),
    "en-test-013": ("Polhavn", r"(?i)vendor"),
    "en-test-014": ("PV-7", r"(?i)standby"),
    "en-test-015": ("Kestrel Cells", r"(?i)audit"),
    "en-test-016": ("", r"(?i)poem|poetry"),
    "en-test-047": ("Rognan", r"TR-\d|attended"),
    "en-test-048": ("badge", r"(?i)cleaning (staff|crew|company)|cleaners"),
    "en-test-049": ("", r"gallon"),
    "zh-test-015": (r"FW 3\.1\.4", r"发布"),
    "zh-test-016": ("", r"天气|下雨|降雨"),
    "zh-test-034": ("KX-330", r"IP ?\d\d"),
    "zh-test-035": ("杭州", r"分机|电话"),
}


@pytest.fixture(scope="module")
def splits() -> dict[str, list[Case]]:
    return {split: load_sample(split) for split in SPLITS}


@pytest.fixture(scope="module")
def cases(splits: dict[str, list[Case]]) -> list[Case]:
    return [case for split in splits.values() for case in split]


@pytest.fixture(scope="module")
def corpus() -> list[dict[str, Any]]:
    files = sorted((SAMPLE_DIR / "corpus").glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def texts(corpus: list[dict[str, Any]]) -> dict[str, str]:
    return {document["id"]: f"{document['title']}\n{document['text']}" for document in corpus}


def plain(text: str) -> str:
    """Fold as the contract of the gold set says, on purpose without the normal form of the metrics."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def test_it_is_large_enough_in_documents_cases_and_both_languages(
    splits: dict[str, list[Case]], cases: list[Case], corpus: list[dict[str, Any]]
) -> None:
    assert len(corpus) >= 150
    assert len(cases) >= 300
    assert [len(splits[split]) >= n for split, n in (("train", 120), ("dev", 90), ("test", 90))] == [True] * 3
    for rows in (corpus, [{"metadata": {"lang": case.lang}} for case in cases]):
        share = sum(row["metadata"]["lang"] == "en" for row in rows) / len(rows)
        assert 0.5 <= share <= 0.7


def test_every_kind_has_its_share_in_every_split_and_language(splits: dict[str, list[Case]], cases: list[Case]) -> None:
    assert {case.kind for case in cases} == set(KINDS)
    counts = Counter((split, case.kind, case.lang) for split, rows in splits.items() for case in rows)
    assert [key for key in product(SPLITS, KINDS, ("en", "zh")) if not counts[key]] == []
    for kind in KINDS:
        shares = [sum(case.kind == kind for case in rows) / len(rows) for rows in splits.values()]
        assert max(shares) - min(shares) < 0.04


def test_the_corpus_is_one_that_the_index_takes_with_typed_consistent_metadata(corpus: list[dict[str, Any]]) -> None:
    assert len(list(read_documents(SAMPLE_DIR / "corpus"))) == len(corpus)
    types: dict[str, set[type]] = {}
    for document in corpus:
        metadata = document["metadata"]
        assert metadata["type"] in TYPES
        assert metadata["lang"] == document["id"][:2]
        assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", metadata["date"])
        assert metadata.get("status") in (None, "current", "superseded", "open", "closed")
        for key, value in metadata.items():
            types.setdefault(key, set()).add(type(value))
    assert set(types) <= {"type", "lang", "date", "product", "region", "version", "status"}
    assert all(len(kinds) == 1 for kinds in types.values())
    assert {document["metadata"]["type"] for document in corpus} == set(TYPES)


def test_documents_are_not_one_template_with_slots(texts: dict[str, str]) -> None:
    def shingles(text: str) -> set[str]:
        words = re.findall(r"[a-z0-9.-]+|[\u4e00-\u9fff]", plain(text))
        return {" ".join(words[i : i + 5]) for i in range(len(words) - 4)}

    held = {id_: shingles(text) for id_, text in texts.items()}
    alike = [
        (one, other)
        for one, other in combinations(held, 2)
        if len(held[one] & held[other]) > 0.35 * min(len(held[one]), len(held[other]))
    ]
    assert alike == []
    lengths = sorted(len(text) for text in texts.values())
    assert lengths[-1] > 3 * lengths[len(lengths) // 2] > 3 * 1.5 * lengths[0]


def test_the_check_finds_no_error_and_only_doubts_that_were_read(
    splits: dict[str, list[Case]], texts: dict[str, str]
) -> None:
    findings = [finding for rows in splits.values() for finding in check_cases(rows, texts)]
    assert [finding for finding in findings if finding.level == "error"] == []
    assert {finding.case_id for finding in findings} <= REVIEWED_DOUBTS
    assert check_leaks(splits) == []


def test_evidence_stands_word_for_word_in_the_gold_documents(cases: list[Case], texts: dict[str, str]) -> None:
    for case in cases:
        evidence = plain("\n".join(texts[id_] for id_ in case.gold_ids))
        for span in case.gold_spans:
            assert plain(span) in evidence, case.id
        if not case.answerable or case.kind == "chitchat":
            assert not case.gold_ids, case.id
            continue
        assert case.gold_ids, case.id
        assert case.gold_spans, case.id
        yes_no = {"yes", "no", "是", "否"} & set(case.answer)
        if case.kind in COMPUTED or yes_no:
            continue
        for part in [*([case.answer] if case.answer else []), *case.answer_groups, *case.key_points]:
            assert any(plain(text) in evidence for text in part), (case.id, part)


def test_unanswerable_facts_are_absent_though_their_subject_is_there(cases: list[Case], texts: dict[str, str]) -> None:
    unanswerable = {case.id: case for case in cases if not case.answerable}
    assert set(ABSENT) == set(unanswerable)
    for id_, (subject, asked) in ABSENT.items():
        about = [doc for doc, text in texts.items() if re.search(subject, text)]
        assert about, id_
        assert (subject == "") == (unanswerable[id_].meta.get("scope") == "out"), id_
        assert [doc for doc in about if re.search(asked, texts[doc])] == [], id_


def test_splits_share_no_question_and_no_evidence_pair(splits: dict[str, list[Case]]) -> None:
    def words(case: Case) -> set[str]:
        text = plain(" ".join([*(turn.text for turn in case.history), case.question]))
        chinese = re.findall(r"[\u4e00-\u9fff]", text)
        pairs = ["".join(pair) for pair in pairwise(chinese)]
        return set(re.findall(r"[a-z0-9.-]+", text)) | set(pairs)

    for one, other in combinations(SPLITS, 2):
        pairs = {frozenset(case.gold_ids) for case in splits[one] if len(case.gold_ids) > 1}
        assert [case.id for case in splits[other] if frozenset(case.gold_ids) in pairs] == []
        held = [(case, words(case)) for case in splits[one]]
        for case in splits[other]:
            mine = words(case)
            for twin, its in held:
                alike = len(mine & its) / len(mine | its)
                ids = [set(re.findall(r"[A-Z]+-\d+", c.question)) for c in (case, twin)]
                assert alike <= 0.7 or ids[0] != ids[1], (case.id, twin.id)


def test_every_accepted_answer_scores_full_and_every_trap_nothing(cases: list[Case]) -> None:
    for case in cases:
        if not case.answerable:
            assert not case.answer
            continue
        for answer in case.answer if not (case.answer_groups or case.key_points) else ():
            assert answer_score(case, answer) == 1, (case.id, answer)
        if case.answer_groups and not case.key_points:
            assert answer_score(case, ", ".join(group[0] for group in case.answer_groups)) == 1, case.id
        for wrong in case.wrong_answers:
            assert answer_score(case, wrong) == 0, (case.id, wrong)


def test_ideal_tools_exist_and_ideal_filters_let_the_evidence_through(
    cases: list[Case], corpus: list[dict[str, Any]]
) -> None:
    metadata = {document["id"]: document["metadata"] for document in corpus}
    tests = {"gte": lambda a, b: a >= b, "lte": lambda a, b: a <= b, "eq": lambda a, b: a == b}
    assert {tool for case in cases for tool in case.tools} <= {"hybrid", "keyword", "dense", "sql"}
    for case in cases:
        for key, test in (case.filters or {}).items():
            conditions = test if isinstance(test, dict) else {"eq": test}
            for id_, (operator, value) in product(case.gold_ids, conditions.items()):
                assert tests[operator.removeprefix("$")](metadata[id_][key], value), (case.id, id_, key)


def test_the_hard_kinds_are_what_they_say(cases: list[Case], texts: dict[str, str]) -> None:
    for case in cases:
        assert (case.kind == "follow_up") == bool(case.history), case.id
        if case.kind == "multi_hop":
            assert len(set(case.gold_ids)) >= 2, case.id
        if case.kind == "conflict":
            assert case.wrong_answers or case.answer_groups, case.id
    assert sum(len(set(case.gold_ids)) >= 3 for case in cases if case.kind == "multi_hop") >= 5
    assert sum(bool(case.answer_groups) for case in cases) >= 8
    assert sum(bool(case.key_points) for case in cases) >= 3
    injected = [case for case in cases if case.meta.get("injection")]
    assert {case.lang for case in injected} == {"en", "zh"}
    assert all(case.wrong_answers and case.answerable for case in injected)
    for case in injected:
        assert any(plain(wrong) in plain(texts[id_]) for id_ in texts for wrong in case.wrong_answers), case.id
