"""CLI: build an index, search it, look into it, mend it, measure it."""

import argparse
import json
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from programs.cli import UsageError, add_command, run_guarded

if TYPE_CHECKING:
    from retrievers.build import Progress
    from retrievers.index import Index
    from retrievers.records import Hit, Passage, Retriever

_SHOWN_TABLES = 10
_N_SHOWN = 20  # of a list of values in `stats`


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code: 0 done, 1 no hits or a finding, 2 a usage or input error, 130 Ctrl-C."""
    args = _make_parser().parse_args(argv)
    return run_guarded(lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    from retrievers.index import IndexTorn

    try:
        return int(args.run(args))
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise
        remedy = "remove the folder and build it again"
        raise IndexTorn(f"{args.index}: the index is damaged ({error}); {remedy}") from error


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m retrievers", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_build(commands)
    _add_search(commands)
    show = _add(commands, "show", _run_show, "print passages, by passage id or document id")
    show.add_argument("ids", nargs="+", metavar="ID")
    delete = _add(commands, "delete", _run_delete, "delete documents from the index")
    delete.add_argument("ids", nargs="+", metavar="DOC_ID")
    _add(commands, "stats", _run_stats, "print what the index holds, what built it, and its size on disk")
    doctor = _add(commands, "doctor", _run_doctor, "check the index; exit code 1 when something is wrong")
    doctor.add_argument("--fix", action="store_true", help="write the index anew from its own documents, then check")
    _add_bench(commands)
    return parser


def _add(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], text: str, index: bool = True
) -> argparse.ArgumentParser:
    parser = add_command(commands, name, run, text)
    if index:
        text = "the index folder, or the address of a Chroma server: http://HOST:PORT/COLLECTION"
        parser.add_argument("--index", required=True, metavar="DIR", help=text)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _add_build(commands: Any) -> None:
    build = _add(commands, "build", _run_build, "build the index of a corpus, or bring it up to date")
    build.add_argument(
        "corpus",
        type=Path,
        metavar="CORPUS",
        help="a JSONL corpus, a file (Markdown, text, HTML, PDF, DOCX, CSV, XLSX), or a folder of them",
    )
    build.add_argument(
        "--embedder",
        default="multilingual",
        metavar="NAME",
        help="multilingual, or a sentence-transformers name or path",
    )
    build.add_argument("--passage-tokens", type=int, default=512, metavar="N", help="largest passage (default 512)")
    build.add_argument("--overlap-tokens", type=int, default=96, metavar="N", help="shared by neighbours (default 96)")
    build.add_argument(
        "--words", type=Path, metavar="FILE", help="Chinese words to keep whole, one a line; jieba's dictionaries fit"
    )
    build.add_argument("--prune", action="store_true", help="drop documents that were indexed from other corpora")


def _add_search(commands: Any) -> None:
    search = _add(commands, "search", _run_search, "search an index, for one query or a whole case file")
    search.add_argument("query", nargs="?", metavar="QUERY")
    search.add_argument("-k", type=int, default=10, metavar="N", help="hits, or documents of a run (default 10)")
    search.add_argument("--mode", choices=("hybrid", "keyword", "dense"), default="hybrid")
    search.add_argument(
        "--filter",
        type=_parse_json,
        default={},
        metavar="JSON",
        dest="filters",
        help='conditions on metadata, such as \'{"product": "A1", "date": {"gte": "2024-01"}}\'',
    )
    search.add_argument("--exact", action="store_true", help="compare with every passage instead of near ones")
    search.add_argument(
        "--fusion", choices=("scores", "ranks"), default="scores", help="how hybrid fuses the two sides"
    )
    search.add_argument("--rerank", metavar="NAME", help="a cross-encoder by sentence-transformers name or path")
    search.add_argument("--rerank-threshold", type=float, metavar="X", help="drop hits that it scores below X")
    search.add_argument("--cases", type=Path, metavar="FILE", help="search for every question of a case file")
    search.add_argument("--run", type=Path, metavar="OUT", dest="run_path", help="the TREC run to write for --cases")


def _add_bench(commands: Any) -> None:
    text = "measure speed on synthetic corpora, recall on folders with cases, or what building costs beyond embedding"
    bench = _add(commands, "bench", _run_bench, text, index=False)
    bench.add_argument("kind", choices=("speed", "recall", "overhead"))
    bench.add_argument(
        "folders",
        nargs="*",
        type=Path,
        metavar="PATH",
        help="recall: folders of corpus.jsonl and cases.jsonl; overhead: corpora",
    )
    bench.add_argument(
        "--work", type=Path, required=True, metavar="DIR", help="where the indexes go; speed and recall go on with them"
    )
    bench.add_argument(
        "--passages", type=int, nargs="+", default=[10_000], metavar="N", help="speed: sizes (default 10000)"
    )
    bench.add_argument(
        "--sides",
        nargs="+",
        choices=("bm25", "keyword", "dense", "hybrid", "chroma", "rank-bm25"),
        metavar="SIDE",
        help="speed: bm25 (ours, built alone), keyword, dense, hybrid (our whole index), chroma, rank-bm25 (bare); "
        "default all, rank-bm25 up to 200,000 passages",
    )
    bench.add_argument("--documents", type=int, metavar="N", help="overhead: only the first N of each corpus")
    bench.add_argument("--dimension", type=int, default=512, metavar="N", help="speed: of the vectors (default 512)")
    bench.add_argument("--embedder", default="multilingual", metavar="NAME", help="recall, overhead: as for build")
    bench.add_argument("-k", type=int, default=10, metavar="N", help="recall: documents counted (default 10)")


def _parse_json(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error.msg}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("expected an object of conditions by metadata key")
    return value


def _run_build(args: argparse.Namespace) -> int:
    from retrievers.build import build_index
    from retrievers.passages import Chunker

    try:
        chunker = Chunker(args.passage_tokens, args.overlap_tokens)
    except ValueError as error:
        raise UsageError(str(error)) from None
    words = _read_words(args.words) if args.words else ()
    with _show_progress() as progress:
        report = build_index(
            args.corpus, args.index, args.embedder, chunker=chunker, words=words, prune=args.prune, progress=progress
        )
    for skip in report.skipped:
        print(f"skipped {skip.path}: {skip.reason}", file=sys.stderr)
    manifest = report.manifest
    if args.json:
        record = {
            "index": str(report.path),
            "unchanged": report.unchanged,
            "documents": manifest.n_documents,
            "passages": manifest.n_passages,
            "embedded": report.n_embedded,
            "skipped": len(report.skipped),
            "kept": report.kept,
            "corpus_version": manifest.corpus_version,
            "seconds": round(report.seconds, 2),
        }
        print(json.dumps(record, ensure_ascii=False))
        return 0
    if report.kept:
        print(f"{report.kept} documents of other corpora stay (--prune drops them)", file=sys.stderr)
    what = "nothing changed" if report.unchanged else f"{report.n_embedded} passages embedded"
    print(
        f"{report.path}: {manifest.n_documents} documents, {manifest.n_passages} passages; "
        f"{what} ({report.seconds:.1f} s, corpus version {manifest.corpus_version})"
    )
    return 0


def _read_words(path: Path) -> list[str]:
    from retrievers.tokenizer import read_words

    words, unused = read_words(path)
    if unused:
        what = f"{len(unused)} lines are not of Chinese characters alone, and have no effect; the first is line"
        print(f"{path}: {what} {unused[0]}", file=sys.stderr)
    return words


def _run_search(args: argparse.Namespace) -> int:
    from retrievers.index import open_index

    if (args.query is None) == (args.cases is None):
        raise UsageError("search takes either a QUERY or --cases FILE")
    if (args.cases is None) != (args.run_path is None):
        raise UsageError("--cases FILE and --run OUT go together")
    if args.k < 1:
        raise UsageError(f"-k must be at least 1, got {args.k}")
    if args.query is not None and not args.query.strip():
        raise UsageError("the query is empty")
    if args.rerank_threshold is not None and not args.rerank:
        raise UsageError("--rerank-threshold needs --rerank")
    index = open_index(args.index)
    search = _make_search(index, args)
    if args.cases is not None:
        return _write_run(search, args)
    hits = search(args.query, args.k)
    for hit in hits:
        print(json.dumps(_to_record(hit), ensure_ascii=False) if args.json else _format_hit(hit))
    if not hits:
        where = f" where {json.dumps(args.filters, ensure_ascii=False)}" if args.filters else ""
        print(f"nothing found{where}", file=sys.stderr)
    return 0 if hits else 1


def _make_search(index: "Index", args: argparse.Namespace) -> "Callable[[str, int], list[Hit]]":
    retriever: Retriever = index.retriever(args.mode, exact=args.exact, fusion=args.fusion)
    if args.rerank:
        from retrievers.rerank import CrossEncoderReranker, RerankingRetriever

        retriever = RerankingRetriever(retriever, CrossEncoderReranker(args.rerank), threshold=args.rerank_threshold)
    return lambda query, k: retriever.search(query, k, args.filters)


def _write_run(search: "Callable[[str, int], list[Hit]]", args: argparse.Namespace) -> int:
    from retrievers.runs import format_ranking, rank_documents
    from trainsets.cases import load_cases

    cases = load_cases(args.cases)
    lines: list[str] = []
    with _show_progress() as progress:
        for n, case in enumerate(cases, start=1):
            lines.extend(format_ranking(case.id, rank_documents(search, case.question, args.k), args.mode))
            progress("searching", n, len(cases))
    args.run_path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(f"{args.run_path}: {len(cases)} questions, {len(lines)} lines")
    return 0


def _run_show(args: argparse.Namespace) -> int:
    from retrievers.index import open_index

    index = open_index(args.index)
    passages: list[Passage] = []
    for identifier in args.ids:
        passages.extend(index.passages_of(identifier) or [index.passage(identifier)])
    for passage in passages:
        if args.json:
            print(json.dumps(_passage_record(passage), ensure_ascii=False))
        else:
            fields = ", ".join(f"{key}={value}" for key, value in passage.metadata.items())
            print(f"{passage.passage_id}  {passage.title}\n[{fields}]\n{passage.text}\n")
    return 0


def _run_delete(args: argparse.Namespace) -> int:
    from retrievers.build import delete_documents

    with _show_progress() as progress:
        manifest = delete_documents(args.index, args.ids, progress=progress)
    record = {
        "deleted": len(set(args.ids)),
        "documents": manifest.n_documents,
        "corpus_version": manifest.corpus_version,
    }
    text = f"{args.index}: {record['deleted']} deleted, {manifest.n_documents} documents left"
    print(json.dumps(record) if args.json else text)
    return 0


def _run_stats(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from retrievers.doctor import measure_sizes
    from retrievers.index import open_index

    index = open_index(args.index)
    record = {**asdict(index.manifest), "bytes_on_disk": measure_sizes(index.path)}
    tables = index.tables()
    record["tables"] = {table.name: dict(table.columns) for table in tables} if args.json else len(tables)
    if args.json:
        print(json.dumps(record, ensure_ascii=False))
        return 0
    for key, value in record.items():
        print(f"{key:22} {_format_value(value)}")
    for table in tables[:_SHOWN_TABLES]:
        print(f"  {table.name}: {table.n_rows} rows, {', '.join(name for name, _ in table.columns)}")
    if len(tables) > _SHOWN_TABLES:
        print(f"  … and {len(tables) - _SHOWN_TABLES} more (--json)")
    return 0


def _run_doctor(args: argparse.Namespace) -> int:
    from retrievers.doctor import examine, repair

    if args.fix:
        with _show_progress() as progress:
            repair(args.index, progress)
    findings = examine(args.index)
    for finding in findings:
        record = {"check": finding.check, "ok": finding.ok, "message": finding.message}
        line = f"{'ok     ' if finding.ok else 'PROBLEM'} {finding.check}: {finding.message}"
        print(json.dumps(record, ensure_ascii=False) if args.json else line)
    return 0 if all(finding.ok for finding in findings) else 1


def _run_bench(args: argparse.Namespace) -> int:
    if (args.kind == "speed") == bool(args.folders):
        raise UsageError("bench recall takes folders, bench overhead takes corpora, bench speed takes neither")
    return int({"recall": _bench_recall, "speed": _bench_speed, "overhead": _bench_overhead}[args.kind](args))


def _bench_recall(args: argparse.Namespace) -> int:
    from retrievers.bench_recall import format_table, measure_recall, to_record

    rows = []
    for number, folder in enumerate(args.folders, start=1):
        print(f"{folder.name} ({number} of {len(args.folders)})", file=sys.stderr)
        with _show_progress() as progress:
            rows.append(measure_recall(folder, args.work / folder.name, args.embedder, args.k, progress))
    print("\n".join(json.dumps(to_record(row)) for row in rows) if args.json else format_table(rows, args.k))
    return 0


def _bench_speed(args: argparse.Namespace) -> int:
    from retrievers.bench import format_measurements, name_left_out, run_bench, to_record

    results = []
    for n in args.passages:
        print(f"{n:,} passages", file=sys.stderr)
        tell = lambda text: print(f"  {text}", file=sys.stderr, flush=True)  # noqa: E731
        results.extend(run_bench(n, args.work / f"{n}", tell, args.dimension, args.sides))
    if args.json:
        print("\n".join(json.dumps(to_record(result)) for result in results))
        return 0
    print(format_measurements(results))
    for n in args.passages:
        if left_out := name_left_out(n, args.sides):
            print(f"{n:,} passages: {left_out}")
    return 0


def _bench_overhead(args: argparse.Namespace) -> int:
    from retrievers.bench_overhead import format_overheads, measure_overhead, to_record

    results = []
    for corpus in args.folders:
        print(corpus, file=sys.stderr)
        results.append(measure_overhead(corpus, args.work, args.embedder, args.documents))
    print("\n".join(json.dumps(to_record(row)) for row in results) if args.json else format_overheads(results))
    return 0


def _format_hit(hit: "Hit") -> str:
    passage = hit.passage
    text = " ".join(passage.text.split())
    title = f"{passage.title} | " if passage.title else ""
    return f"{hit.rank:>3}  {hit.score:.4f}  {passage.passage_id}  {title}{text[:160]}{'…' if len(text) > 160 else ''}"


def _to_record(hit: "Hit") -> dict[str, Any]:
    return {"rank": hit.rank, "score": hit.score, **_passage_record(hit.passage)}


def _passage_record(passage: "Passage") -> dict[str, Any]:
    return {
        "passage_id": passage.passage_id,
        "doc_id": passage.doc_id,
        "title": passage.title,
        "text": passage.text,
        "metadata": dict(passage.metadata),
    }


def _format_value(value: object) -> str:
    if isinstance(value, dict):
        return (
            ", ".join(f"{key}: {f'{item:,}' if isinstance(item, int) else item}" for key, item in value.items()) or "–"
        )
    if isinstance(value, tuple):
        return ", ".join(map(str, value[:_N_SHOWN])) + (f" … ({len(value):,})" if len(value) > _N_SHOWN else "") or "–"
    return str(value)


@contextmanager
def _show_progress() -> Iterator["Progress"]:
    """Draw bars on a terminal's stderr; where stderr is a file, print a line every tenth of the way."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _PlainProgress()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, Any] = {}

        def update(stage: str, done: int, total: int | None) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield update


class _PlainProgress:
    def __init__(self) -> None:
        self._tenths: dict[str, int] = {}

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        tenth = 10 * done // total if total else -1
        if tenth > self._tenths.get(stage, -1):
            self._tenths[stage] = tenth
            print(f"{stage}: {done} of {total}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
