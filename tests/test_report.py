import base64
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lxml.html
import pytest
from evaluations import case_of, errored, ladder, result_of, summarise_all, write_records
from lxml import etree

from trainsets.__main__ import main
from trainsets.report import PLOTS, REPORT, write_pages, write_report
from trainsets.results import CaseResult, summarise
from trainsets.tables import COLUMNS, table_row

HOSTILE = "</script><script>alert(1)</script><img src=http://x.example/ onerror=alert(1)>{{ 7 * 7 }}\"'&\u2028"


class Page:
    """A report, taken apart as a browser would: its elements, the cells of its tables, its text and its data."""

    def __init__(self, html: str) -> None:
        document = lxml.html.document_fromstring(html)
        self.tags = [(element.tag, dict(element.attrib)) for element in document.iter(etree.Element)]
        self.scripts = [script.text for script in document.iter("script")]
        etree.strip_elements(document, "script", "style", with_tail=False)
        self.text = _spaced(document.text_content())
        self.rows = [[_spaced(cell.text_content()) for cell in row] for row in document.iter("tr")]

    def row(self, first: str) -> list[str]:
        """The first row that begins with these words."""
        return next(row for row in self.rows if row[0] == first)

    @property
    def data(self) -> dict[str, Any]:
        """What the cases open to."""
        plain: dict[str, Any] = json.loads(self.scripts[0])
        return plain


def _spaced(text: str) -> str:
    return re.sub(r"[ \n]+", " ", text).strip()


def report(folder: Path, evaluated: Mapping[str, Sequence[CaseResult]]) -> Page:
    path = write_report(write_records(folder, evaluated))
    assert path == folder / "report.html"
    return Page(path.read_text(encoding="utf-8"))


def assert_self_contained(page: Page) -> None:
    assert {tag for tag, _ in page.tags} & {
        "link",
        "img",
        "iframe",
        "object",
        "embed",
        "form",
        "base",
        "audio",
        "video",
    } == set()
    for _, attributes in page.tags:
        assert {"src", "srcset", "action", "data", "poster", "xlink:href"} & attributes.keys() == set()
        assert (attributes.get("href") or "#").startswith("#")
        assert [name for name in attributes if name.startswith("on")] == []


def test_a_report_needs_nothing_but_itself(tmp_path: Path) -> None:
    page = report(tmp_path, ladder())
    assert_self_contained(page)
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "@import" not in html
    assert "url(" not in html
    policy = next(attributes["content"] for tag, attributes in page.tags if tag == "meta" and "content" in attributes)
    assert str(policy).startswith("default-src 'none'; ")


def test_the_browser_is_told_to_run_the_one_script_of_the_report(tmp_path: Path) -> None:
    page = report(tmp_path, ladder())
    types = [attributes.get("type") for tag, attributes in page.tags if tag == "script"]
    assert types == ["application/json", "application/json", None]
    digest = base64.b64encode(hashlib.sha256(page.scripts[-1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_no_text_of_a_corpus_a_case_or_an_answer_becomes_markup(tmp_path: Path) -> None:
    plain = report(tmp_path / "plain", {"naive": [result_of(case_of(1)), errored(case_of(2))]})
    bad = case_of(1, id=HOSTILE, question=HOSTILE, answer=(HOSTILE,), kind=HOSTILE, lang=HOSTILE, gold_ids=(HOSTILE,))
    hostile = {"naive": [result_of(bad, HOSTILE, query=HOSTILE, text=HOSTILE), errored(case_of(2), HOSTILE)]}
    page = report(tmp_path / HOSTILE.replace("/", ""), hostile)
    assert_self_contained(page)
    assert len(page.scripts) == len(plain.scripts)
    assert HOSTILE in page.text
    assert "49" not in page.text
    case = page.data["cases"][0]
    made = case["runs"]["naive"]["prediction"]
    assert (case["id"], case["question"], case["gold"], case["kind"]) == (HOSTILE, HOSTILE, [HOSTILE], HOSTILE)
    assert (made["answer"], made["hops"][0]["query"], page.data["passages"][0]["text"]) == (HOSTILE, HOSTILE, HOSTILE)


def test_a_name_of_a_program_is_text_too(tmp_path: Path) -> None:
    name = "<b onclick=alert(1)>'\"&程序"
    page = report(tmp_path, {name: [result_of(case_of(1))]})
    assert_self_contained(page)
    assert page.row(name)[1] == "1"


def test_the_ladder_is_what_the_evaluation_prints(tmp_path: Path) -> None:
    evaluated = ladder()
    page = report(tmp_path, evaluated)
    for name, results in evaluated.items():
        cells = page.row(name)
        assert cells[1] == "12"
        assert [cells[0], cells[2], *cells[4:]] == list(table_row(name, summarise(results)))
    assert len(page.row("naive")) == len(COLUMNS) + 2  # the number of cases, and the interval of the score


def test_outcomes_slices_and_moves_count_every_case(tmp_path: Path) -> None:
    page = report(tmp_path, ladder())
    assert page.row("right") == ["right", "4 33 %", "11 92 %"]
    assert page.row("stopped early") == ["stopped early", "8 67 %", "·"]
    assert page.row("errored") == ["errored", "·", "1 8 %"]
    assert page.row("all") == ["all", "12 100 %", "12 100 %"]
    assert [page.row(kind)[1:] for kind in ("lookup", "multi_hop", "en")] == [
        ["1.000 n=4", "1.000 n=4"],
        ["0.000 n=4", "1.000 n=4"],
        ["0.333 n=6", "1.000 n=6"],
    ]
    moves = page.data["moves"][0]
    assert (moves["before"], moves["after"]) == ("naive", "agentic")
    assert {pair: len(ids) for pair, ids in moves["ids"].items()} == {
        "stopped_early right": 7,
        "right right": 4,
        "stopped_early errored": 1,
    }
    assert "▲ 7 became right" in page.text


def test_every_case_is_listed_with_all_that_was_recorded_of_it(tmp_path: Path) -> None:
    page = report(tmp_path, ladder())
    listed = [attributes["data-case"] for tag, attributes in page.tags if tag == "tr" and "data-case" in attributes]
    assert [page.data["cases"][int(place or "")]["id"] for place in listed] == [f"case-{n}" for n in range(12)]
    assert all(f"Question {number}?" in page.text for number in range(12))
    run = page.data["cases"][0]["runs"]["naive"]
    made, [hop] = run["prediction"], run["prediction"]["hops"]
    assert (run["outcome"], run["seconds"], run["scores"]["combined"]) == ("right", 1.5, 1.0)
    assert (made["answer"], made["citations"], made["usage"]["prompt_tokens"]) == ("0 V", ["d0#0"], 100)
    assert (hop["query"], hop["tool"], hop["verdict"]) == ("a query", "keyword", "sufficient")
    assert (hop["quotes"], hop["missing"], hop["filters"]) == (["a quote"], "what is missing", '{"year": 2025}')
    assert hop["hits"] == [[1, 0.75, "d0#0"]]
    assert [page.data["passages"][place]["title"] for place in made["context"]] == ["Title of d0"]
    assert page.data["cases"][4]["runs"]["agentic"]["error"] == "RuntimeError: it broke"


def test_a_passage_that_many_cases_were_shown_is_kept_once(tmp_path: Path) -> None:
    lost = [result_of(case_of(number), "no", found=False) for number in range(5)]
    assert len(report(tmp_path, {"naive": lost, "hybrid": lost}).data["passages"]) == 1


@pytest.mark.parametrize(
    "results",
    [
        [result_of(case_of(1))],
        [result_of(case_of(number), "no") for number in range(9)],
        [errored(case_of(number)) for number in range(3)],
        [result_of(case_of(1, kind="", lang=""))],
        [result_of(case_of(1), calls=0)],
        [result_of(case_of(1), cost_usd=0.002)],
    ],
    ids=["one case", "none right", "all errored", "no kinds", "no LM", "money spent"],
)
def test_one_program_with_whatever_results_makes_a_report(tmp_path: Path, results: list[CaseResult]) -> None:
    page = report(tmp_path, {"agentic": results})
    assert page.row("all") == ["all", f"{len(results)} 100 %"]
    assert "Transitions" not in page.text


def test_a_few_cases_prove_nothing(tmp_path: Path) -> None:
    page = report(tmp_path, {"naive": ladder()["naive"][:3], "agentic": ladder()["agentic"][:3]})
    comparison = next(row for row in page.rows if row[1:2] == ["naive"])
    assert [comparison[2], comparison[3], comparison[-1]] == ["+0.667", "–", "too few cases scored in both"]


def test_programs_that_ran_other_cases_are_compared_on_those_they_share(tmp_path: Path) -> None:
    page = report(tmp_path, {"naive": ladder()["naive"], "agentic": ladder()["agentic"][:5]})
    assert page.row("case-9")[-1] == "not run"
    assert page.row("agentic")[1] == "5"
    comparison = next(row for row in page.rows if row[1:2] == ["naive"])
    assert comparison[4:6] == ["4", "8"]


def test_the_summary_names_programs_and_tells_of_the_evaluation(tmp_path: Path) -> None:
    evaluated = ladder()
    write_records(tmp_path, evaluated | {"stale": evaluated["naive"]})
    ours = {name: evaluated[name] for name in ("agentic", "naive")}
    summarise_all(tmp_path, ours)
    page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
    assert page.data["programs"] == ["agentic", "naive"]
    assert "12 cases · 2 programs · openai/test · sample (dev) · 2026-11-30 02:00:00 UTC" in page.text


def test_a_baseline_and_repeats_are_shown_from_the_summary_without_the_places_of_files(tmp_path: Path) -> None:
    evaluated = ladder()
    write_records(tmp_path, evaluated)
    summarise_all(tmp_path, evaluated)
    summary = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    summary["comparisons"].append(summary["comparisons"][0] | {"baseline": "/home/me/SECRET/agentic.jsonl"})
    summary["cases"] = "/home/me/SECRET/gold/"
    alike = {"n_repeats": 2, "n": 11, "scores": [0.5, 0.25], "right": 0.875, "answer": 0.75, "verdict": None}
    summary["programs"][1]["stability"] = alike
    (tmp_path / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    html = write_report(tmp_path).read_text(encoding="utf-8")
    page = Page(html)
    assert [one["before"] for one in page.data["moves"]] == ["naive", "agentic.jsonl"]
    assert next(row for row in page.rows if row[1:2] == ["agentic.jsonl"])[0] == "agentic"
    assert "gold (dev)" in page.text
    assert "SECRET" not in html  # it is sent and logged: where a file lies is nobody's business
    assert ["agentic", "2", "11", "0.875", "0.750", "–", "0.500 0.250"] in page.rows


def test_a_name_that_utf8_can_not_spell_does_not_stop_a_report(tmp_path: Path) -> None:
    page = report(tmp_path / os.fsdecode(b"runs-\xff"), {"naive": [result_of(case_of(1))]})
    assert "runs-\\udcff" in page.text


def test_the_same_records_make_the_same_file(tmp_path: Path) -> None:
    write_records(tmp_path, ladder())
    first = write_report(tmp_path).read_bytes()
    assert write_report(tmp_path, tmp_path / "new" / "other.html").read_bytes() == first


def test_report_and_plots_are_of_the_programs_named_where_a_folder_holds_more(tmp_path: Path) -> None:
    evaluated = ladder()
    write_records(tmp_path, {"seed": evaluated["naive"], "compiled": evaluated["agentic"], "old": evaluated["naive"]})
    report, plots = write_pages(tmp_path, ["seed", "compiled"])
    assert (report, plots) == (tmp_path / REPORT, tmp_path / PLOTS)
    assert Page(report.read_text(encoding="utf-8")).data["programs"] == ["seed", "compiled"]
    assert (plots / "outcomes.png").stat().st_size > 1000


def test_the_command_writes_the_report_and_its_plots_and_names_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_records(tmp_path / "runs", {"agentic": [result_of(case_of(1))]})
    assert main(["report", str(folder), "--out", str(tmp_path / "looks" / "a.html")]) == 0
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert written[0] == tmp_path / "looks" / "a.html"
    assert {path.parent for path in written[1:]} == {tmp_path / "looks" / "plots"}
    assert all(path.stat().st_size > 1000 for path in written)
    assert sorted(path.name for path in folder.iterdir()) == ["agentic.jsonl"]


BROKEN = {
    "no folder": (lambda folder: folder / "none", r"none: no such folder, expected one that evaluate\.py --out wrote"),
    "an empty folder": (lambda folder: folder, r"no record file in it, expected PROGRAM\.jsonl"),
    "an empty file": (lambda folder: _with(folder, ""), r"naive\.jsonl: no record in it"),
    "gold cases": (
        lambda folder: _with(folder, '{"id": "1", "question": "q"}'),
        r"naive\.jsonl:1: outcome: field required",
    ),
    "no JSON": (lambda folder: _with(folder, "\n{"), r"naive\.jsonl:2: invalid json"),
    "bytes": (lambda folder: _with(folder, b"\xff\xfe\x00"), r"naive\.jsonl:1: invalid json"),
    "another summary": (lambda folder: _with(folder, '{"mean": 3}', "summary.json"), r"summary\.json: programs: field"),
}


def _with(folder: Path, content: str | bytes, name: str = "naive.jsonl") -> Path:
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


@pytest.mark.parametrize(("make", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_or_foreign_folder_is_one_line_and_nothing_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Any, message: str
) -> None:
    folder = make(tmp_path)
    (tmp_path / "report.html").write_text("an earlier report", encoding="utf-8")
    before = sorted(tmp_path.iterdir())
    assert main(["report", str(folder)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("error: ")
    assert re.search(message, err)
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == "an earlier report"
