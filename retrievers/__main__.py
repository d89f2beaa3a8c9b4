"""CLI: build an index, search it, write a TREC run for a case file."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retrievers.build import Progress
    from retrievers.index import Index
    from retrievers.records import Hit


class UsageError(ValueError):
    """Flags that do not go together."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code: 0 done, 1 no hits, 2 a usage or input error, 130 interrupted."""
    args = _make_parser().parse_args(argv)
    try:
        return int(args.run(args))
    except KeyboardInterrupt:
        print("interrupted; repeating the command goes on", file=sys.stderr)
        return 130
    except (OSError, ValueError, RuntimeError) as error:
        if not _is_known(error):
            raise
        print(f"error: {error}", file=sys.stderr)
        return 2


def _is_known(error: Exception) -> bool:
    """Tell our own errors and the file system's from bugs."""
    return isinstance(error, OSError) or type(error).__module__.startswith(("retrievers.", "trainsets.", "__main__"))


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m retrievers", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    build = commands.add_parser("build", help="build the index of a corpus, or bring it up to date")
    build.add_argument("corpus", type=Path, metavar="CORPUS", help="a JSONL corpus, a file, or a folder of them")
    build.add_argument("--index", type=Path, required=True, metavar="DIR", help="the index folder")
    build.add_argument(
        "--embedder",
        default="multilingual",
        metavar="NAME",
        help="multilingual, or a sentence-transformers name or path",
    )
    build.add_argument("--passage-tokens", type=int, default=512, metavar="N", help="largest passage (default 512)")
    build.add_argument("--overlap-tokens", type=int, default=96, metavar="N", help="shared by neighbours (default 96)")
    build.add_argument("--words", type=Path, metavar="FILE", help="terms the Chinese segmenter keeps whole, one a line")
    build.add_argument("--json", action="store_true", help="print the report as JSON")
    build.set_defaults(run=_run_build)
    _add_search(commands)
    return parser


def _add_search(commands: Any) -> None:
    search = commands.add_parser("search", help="search an index, for one query or a whole case file")
    search.add_argument("query", nargs="?", metavar="QUERY")
    search.add_argument("--index", type=Path, required=True, metavar="DIR", help="the index folder")
    search.add_argument("-k", type=int, default=10, metavar="N", help="hits, or documents of a run (default 10)")
    search.add_argument("--mode", choices=("hybrid", "dense", "lexical"), default="hybrid")
    search.add_argument("--cases", type=Path, metavar="FILE", help="search for every question of a case file")
    search.add_argument("--run", type=Path, metavar="OUT", dest="run_path", help="the TREC run to write for --cases")
    search.add_argument("--json", action="store_true", help="print one JSON object a hit")
    search.set_defaults(run=_run_search)


def _run_build(args: argparse.Namespace) -> int:
    from retrievers.build import build_index
    from retrievers.passages import Chunker

    try:
        chunker = Chunker(args.passage_tokens, args.overlap_tokens)
    except ValueError as error:
        raise UsageError(str(error)) from None
    words = args.words.read_text(encoding="utf-8").splitlines() if args.words else ()
    with _show_progress() as progress:
        report = build_index(args.corpus, args.index, args.embedder, chunker=chunker, words=words, progress=progress)
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
            "corpus_version": manifest.corpus_version,
            "seconds": round(report.seconds, 2),
        }
        print(json.dumps(record, ensure_ascii=False))
        return 0
    what = "nothing changed" if report.unchanged else f"{report.n_embedded} passages embedded"
    print(
        f"{report.path}: {manifest.n_documents} documents, {manifest.n_passages} passages; "
        f"{what} ({report.seconds:.1f} s, corpus version {manifest.corpus_version})"
    )
    return 0


def _run_search(args: argparse.Namespace) -> int:
    from retrievers.index import open_index

    if (args.query is None) == (args.cases is None):
        raise UsageError("search takes either a QUERY or --cases FILE")
    if (args.cases is None) != (args.run_path is None):
        raise UsageError("--cases FILE and --run OUT go together")
    if args.k < 1:
        raise UsageError(f"-k must be at least 1, got {args.k}")
    index = open_index(args.index)
    if args.cases is not None:
        return _write_run(index, args)
    hits = index.search(args.query, args.k, args.mode)
    for hit in hits:
        print(_format_json(hit) if args.json else _format_hit(hit))
    return 0 if hits else 1


def _write_run(index: "Index", args: argparse.Namespace) -> int:
    from retrievers.runs import format_ranking, rank_documents

    questions = list(_read_questions(args.cases))
    lines: list[str] = []
    with _show_progress() as progress:
        for n, (case_id, question) in enumerate(questions, start=1):
            lines.extend(format_ranking(case_id, rank_documents(index, question, args.k, args.mode), args.mode))
            progress("searching", n, len(questions))
    args.run_path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(f"{args.run_path}: {len(questions)} questions, {len(lines)} lines")
    return 0


def _read_questions(path: Path) -> Iterator[tuple[str, str]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                case = json.loads(line)
                yield str(case["id"]), str(case["question"])
            except json.JSONDecodeError as error:
                raise UsageError(f"{path}:{number}: not JSON: {error.msg}") from None
            except (KeyError, TypeError):
                raise UsageError(f"{path}:{number}: a case needs `id` and `question`") from None


def _format_hit(hit: "Hit") -> str:
    passage = hit.passage
    text = " ".join(passage.text.split())
    title = f"{passage.title} | " if passage.title else ""
    return f"{hit.rank:>3}  {hit.score:.4f}  {passage.passage_id}  {title}{text[:160]}{'…' if len(text) > 160 else ''}"


def _format_json(hit: "Hit") -> str:
    passage = hit.passage
    record = {
        "rank": hit.rank,
        "score": hit.score,
        "passage_id": passage.passage_id,
        "doc_id": passage.doc_id,
        "title": passage.title,
        "text": passage.text,
        "metadata": dict(passage.metadata),
    }
    return json.dumps(record, ensure_ascii=False)


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
