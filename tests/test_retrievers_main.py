import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import heavy_imports_of_help

from retrievers.__main__ import main


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "retrievers", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    records = [
        {"id": "a b", "title": "E-1024", "text": "Supply voltage too low."},
        {"id": "c/d", "title": "维护", "text": "请先断电，然后打开盖子。"},
    ]
    corpus = folder / "c.jsonl"
    corpus.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    done = run("build", corpus, "--index", folder / "i", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["passages"] == 2
    return folder / "i"


@pytest.mark.parametrize("command", [(), ("build",), ("search",), ("doctor",), ("bench",)])
def test_help_needs_no_index_and_imports_nothing_that_takes_time(command: tuple[str, ...]) -> None:
    assert heavy_imports_of_help(["-m", "retrievers", *command]) == ""


def test_search_prints_hits_on_stdout_and_nothing_on_stderr(index: Path) -> None:
    done = run("search", "怎么打开盖子", "--index", index, "-k", "1")
    assert done.returncode == 0
    assert "c/d#0" in done.stdout
    assert done.stderr == ""


def test_json_lines_hold_the_whole_passage(index: Path) -> None:
    done = run("search", "E-1024", "--index", index, "--json", "--mode", "keyword")
    [hit] = map(json.loads, done.stdout.splitlines())
    assert (hit["rank"], hit["passage_id"], hit["text"]) == (1, "a b#0", "Supply voltage too low.")


def test_a_reader_that_has_gone_is_no_error(index: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "retrievers", "stats", "--index", str(index)]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_hit_is_said_and_exit_code_one(index: Path) -> None:
    done = run("search", "zzzz", "--index", index, "--mode", "keyword")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "nothing found\n")


def test_where_a_filter_leaves_nothing_it_is_named(index: Path, capsys) -> None:
    assert main(["search", "voltage", "--index", str(index), "--filter", '{"lang": "fr"}']) == 1
    assert capsys.readouterr().err == 'nothing found where {"lang": "fr"}\n'


def test_a_case_file_becomes_a_trec_run_of_documents(index: Path, tmp_path: Path) -> None:
    cases = tmp_path / "cases.jsonl"
    cases.write_text(
        '{"id": "q 1", "question": "voltage", "gold_ids": ["a b"]}\n{"id": "q2", "question": "盖子"}\n',
        encoding="utf-8",
    )
    done = run("search", "--cases", cases, "--run", tmp_path / "out.trec", "--index", index)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in (tmp_path / "out.trec").read_text(encoding="utf-8").splitlines()]
    assert all(len(line) == 6 and line[1] == "Q0" and line[5] == "hybrid" for line in lines)
    assert [(line[0], line[2], line[3]) for line in lines if line[3] == "1"] == [
        ("q%201", "a%20b", "1"),
        ("q2", "c/d", "1"),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build", "/none", "--index", "{tmp}/i"], "/none: no such file or folder"),
        (["build", "{tmp}", "--index", "{tmp}/i"], "no documents found"),
        (["build", "{tmp}", "--index", "{tmp}/i", "--passage-tokens", "3"], "at least 16"),
        (["search", "x", "--index", "{tmp}/none"], "no index here"),
        (["search", "--index", "{tmp}/none"], "either a QUERY or --cases"),
        (["search", " ", "--index", "{tmp}/none"], "the query is empty"),
        (["search", "--cases", "f", "--index", "{tmp}"], "go together"),
        (["search", "x", "--index", "{tmp}/none", "--rerank-threshold", "1"], "needs --rerank"),
        (["search", "x", "--index", "http://127.0.0.1:9"], "expected http://HOST:PORT/COLLECTION"),
        (["search", "x", "--index", "http://127.0.0.1:9/c"], "127.0.0.1:9"),
        (["bench", "recall", "--work", "{tmp}"], "takes folders"),
    ],
)
def test_known_errors_are_one_line_and_exit_code_two(
    capsys, tmp_path: Path, arguments: list[str], message: str
) -> None:
    assert main([argument.format(tmp=tmp_path) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert message in line
    assert list(tmp_path.iterdir()) == []


def test_filters_are_checked_and_pushed_down(index: Path, capsys) -> None:
    assert main(["search", "voltage", "--index", str(index), "--filter", '{"lang": "en"}', "--json"]) == 0
    assert {json.loads(line)["doc_id"] for line in capsys.readouterr().out.splitlines()} == {"a b"}
    assert main(["search", "voltage", "--index", str(index), "--filter", '{"langue": "en"}']) == 2
    assert "no such key" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        main(["search", "voltage", "--index", str(index), "--filter", "lang=en"])
    assert caught.value.code == 2


def test_exact_and_ranks_find_the_same_first_hit(index: Path, capsys) -> None:
    for flags in (["--exact"], ["--fusion", "ranks"], ["--mode", "dense", "--exact"]):
        assert main(["search", "怎么打开盖子", "--index", str(index), "-k", "1", *flags]) == 0
        assert "c/d#0" in capsys.readouterr().out


def test_show_prints_by_document_and_by_passage(index: Path, capsys) -> None:
    assert main(["show", "c/d", "a b#0", "--index", str(index), "--json"]) == 0
    assert [json.loads(line)["passage_id"] for line in capsys.readouterr().out.splitlines()] == ["c/d#0", "a b#0"]
    assert main(["show", "nothing", "--index", str(index)]) == 2
    assert capsys.readouterr().err == "error: no passage 'nothing' in the index\n"


def test_stats_and_doctor_report_as_json(index: Path, capsys) -> None:
    assert main(["stats", "--index", str(index), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_documents"] == 2
    main(["doctor", "--index", str(index), "--json"])
    findings = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"ids", "rows", "reachability", "embedder", "metadata", "stale"} <= {
        finding["check"] for finding in findings
    }
    assert all(finding["ok"] for finding in findings if finding["check"] != "stale")


def test_delete_and_doctor_fix_leave_a_whole_index(tmp_path: Path, capsys) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"id": "a", "text": "one"}\n{"id": "b", "text": "two"}\n', encoding="utf-8")
    assert main(["build", str(corpus), "--index", str(tmp_path / "i")]) == 0
    assert main(["delete", "a", "--index", str(tmp_path / "i"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["documents"] == 1
    assert main(["delete", "a", "--index", str(tmp_path / "i")]) == 2
    main(["doctor", "--fix", "--index", str(tmp_path / "i")])
    out = capsys.readouterr().out
    assert "ok      ids" in out
    assert main(["search", "two", "--index", str(tmp_path / "i")]) == 0


def test_recall_of_folders_is_one_table(tmp_path: Path, capsys) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "corpus.jsonl").write_text(
        '{"id": "a", "text": "red fox"}\n{"id": "b", "text": "蓝色的鲸鱼"}\n', encoding="utf-8"
    )
    cases = [
        {"id": "1", "question": "fox", "gold_ids": ["a"]},
        {"id": "2", "question": "鲸鱼", "gold_ids": ["b"]},
        {"id": "3", "question": "no gold"},
    ]
    (folder / "cases.jsonl").write_text("\n".join(map(json.dumps, cases)), encoding="utf-8")
    assert main(["bench", "recall", str(folder), "--work", str(tmp_path / "w"), "-k", "1", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["name"], row["n_cases"], row["keyword"], row["hybrid"]) == ("tiny", 2, 1.0, 1.0)
