"""CLI: check, describe, split, draft and import gold sets; report evaluations."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from programs.cli import UsageError, add_command, run_guarded, show_table
from programs.progress import note

if TYPE_CHECKING:
    from trainsets.cases import Case
    from trainsets.checks import Finding
    from trainsets.drafting import DraftLog

Splits = Mapping[str, Sequence["Case"]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0 done; 1 the check found errors; 2 a usage or input error; 130 interrupted.
    """
    args = _make_parser().parse_args(argv)
    return run_guarded(lambda: int(args.run(args)))


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainsets", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    check = _add(commands, "check", _run_check, "find errors, leaks between splits and doubtful gold")
    check.add_argument("--corpus", type=Path, metavar="C", help="the corpus or index that the gold ids name")
    check.add_argument("--strict", action="store_true", help="doubts fail the check too")
    stats = _add(commands, "stats", _run_stats, "count cases by split, kind and language")
    for command in (check, stats):
        command.add_argument("--json", action="store_true", help="print JSON")
    split = _add(commands, "split", _run_split, "split one case file into train, dev and test")
    split.add_argument("--out", type=Path, required=True, metavar="DIR", help="where train.jsonl … go; must hold none")
    split.add_argument("--ratios", type=float, nargs=3, default=(4, 3, 3), metavar="R", help="shares (default 4 3 3)")
    _add_draft(commands)
    _add_import(commands)
    _add_report(commands)
    for command in (split, commands.choices["draft"]):
        command.add_argument("--seed", type=int, default=0, metavar="N", help="(default 0)")
    return parser


def _add(commands: Any, name: str, run: Callable[..., int], text: str) -> argparse.ArgumentParser:
    command = add_command(commands, name, run, text)
    command.add_argument("cases", type=Path, metavar="FILE", help="a case file, or a folder with one a split")
    return command


def _add_draft(commands: Any) -> None:
    text = "draft cases from documents with an LM, for human review"
    draft = add_command(commands, "draft", _run_draft, text)
    draft.add_argument("corpus", type=Path, metavar="CORPUS", help="a corpus, or an index")
    draft.add_argument("--n", type=int, default=50, metavar="N", help="cases wanted (default 50)")
    draft.add_argument("--out", type=Path, required=True, metavar="FILE", help="the new case file, written as it grows")
    draft.add_argument("--lm", default="local", metavar="LM", help="local, or PROVIDER/MODEL (default local)")
    draft.add_argument("--api-base", metavar="URL", help="an OpenAI-compatible server that serves the LM")


def _add_import(commands: Any) -> None:
    text = "bring HotpotQA, MuSiQue or a BEIR set into corpus.jsonl and cases.jsonl"
    command = add_command(commands, "import", _run_import, text)
    command.add_argument("format", choices=("hotpotqa", "musique", "beir"))
    command.add_argument("source", metavar="SOURCE", help="a file (beir: a folder), or an id on the hub")
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="the new folder")
    command.add_argument("--split", default="test", metavar="S", help="of a hub set or of qrels (default test)")
    command.add_argument("--config", metavar="C", help="the configuration of a hub set")
    command.add_argument("--n", type=int, metavar="N", help="at most so many cases")
    command.add_argument("--lang", default="en", metavar="L", help="(default en)")


def _add_report(commands: Any) -> None:
    text = "write an evaluation as one HTML file, and its figures as PNG files"
    command = add_command(commands, "report", _run_report, text)
    command.add_argument("folder", type=Path, metavar="FOLDER", help="the records, as evaluate.py --out wrote them")
    command.add_argument("--out", type=Path, metavar="FILE", help="the HTML file (default FOLDER/report.html)")
    command.add_argument("--plots", type=Path, metavar="DIR", help="where the PNG files go (default plots/ beside it)")


def _run_check(args: argparse.Namespace) -> int:
    from trainsets.checks import Finding, check_cases, check_leaks

    documents = _read_texts(args.corpus) if args.corpus else None
    splits, findings = {}, []
    for name, path in _files(args.cases).items():
        splits[name], bad_lines = _read_all(path)
        findings += [Finding("error", "", what) for what in bad_lines]
        findings += check_cases(splits[name], documents)
    findings += check_leaks(splits)
    return _report(findings, sum(map(len, splits.values())), args)


def _files(path: Path) -> dict[str, Path]:
    from trainsets.cases import file_of_split, list_splits

    if not path.exists():
        raise UsageError(f"{path}: no such file or folder, expected gold cases")
    if not path.is_dir():
        return {path.stem: path}
    names = list_splits(path)
    if not names:
        raise UsageError(f"{path}: no case file in it, expected for example train.jsonl")
    return {name: file_of_split(path, name) for name in names}


def _read_all(path: Path) -> tuple[list["Case"], list[str]]:
    """Read the good lines of a file, and what is wrong with the others."""
    from trainsets.cases import CaseError, iter_results

    cases: dict[str, Case] = {}
    wrong = []
    for number, result in iter_results(path):
        if isinstance(result, CaseError):
            wrong.append(str(result))
        elif result.id in cases:
            wrong.append(f'{path}:{number}: id: "{result.id}" stands there already, expected a new id')
        else:
            cases[result.id] = result
    if not cases and not wrong:
        raise UsageError(f"{path}: no case in it, expected one JSON object a line")
    return list(cases.values()), wrong


def _report(findings: Sequence["Finding"], n_cases: int, args: argparse.Namespace) -> int:
    counts = Counter(finding.level for finding in findings)
    if args.json:
        print(json.dumps({"n_cases": n_cases, "findings": [asdict(f) for f in findings]}, ensure_ascii=False, indent=1))
    else:
        for finding in sorted(findings, key=lambda finding: finding.level, reverse=True):
            print(f"{finding.level}: {finding.case_id + ': ' if finding.case_id else ''}{finding.what}")
        unseen = "" if args.corpus else "; evidence not checked, give --corpus"
        found = f"{_n(counts['error'], 'error')}, {_n(counts['doubt'], 'doubt')}"
        print(f"{_n(n_cases, 'case')}: {found}{unseen}")
    return int(bool(counts["error"] or (args.strict and counts["doubt"])))


def _n(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _run_stats(args: argparse.Namespace) -> int:
    from trainsets.cases import load_splits

    splits = load_splits(args.cases)
    if args.json:
        print(json.dumps(_count(splits), ensure_ascii=False, indent=1))
        return 0
    counts = Counter(
        (name, case.lang or "?", case.kind or "(none)") for name, cases in splits.items() for case in cases
    )
    langs = sorted({lang for _, lang, _ in counts})
    columns = [(name, lang) for name in splits for lang in langs]
    rows = []
    for kind in [*sorted({kind for _, _, kind in counts}), "all"]:
        cells = [sum(n for (s, g, k), n in counts.items() if (s, g) == c and kind in (k, "all")) for c in columns]
        rows.append([kind, *(n or "–" for n in cells), sum(cells)])
    show_table(str(args.cases), ["kind", *(f"{name} {lang}" for name, lang in columns), "all"], rows)
    return 0


def _count(splits: Splits) -> dict[str, Any]:
    return {
        name: {
            "n_cases": len(cases),
            "n_answerable": sum(case.answerable for case in cases),
            "kinds": dict(sorted(Counter(case.kind for case in cases).items())),
            "langs": dict(sorted(Counter(case.lang for case in cases).items())),
            "gold_ids": dict(sorted(Counter(len(case.gold_ids) for case in cases).items())),
        }
        for name, cases in splits.items()
    }


def _run_split(args: argparse.Namespace) -> int:
    from trainsets.cases import load_cases, write_cases
    from trainsets.splitting import split_cases

    cases = load_cases(args.cases)
    try:
        splits = split_cases(cases, args.ratios, args.seed)
    except ValueError as error:
        raise UsageError(f"--ratios: {error}") from None
    paths = {name: args.out / f"{name}.jsonl" for name in splits}
    _refuse_to_overwrite(paths.values())
    args.out.mkdir(parents=True, exist_ok=True)
    for name, path in paths.items():
        write_cases(path, splits[name])
        print(f"{path}: {_n(len(splits[name]), 'case')}")
    return 0


def _run_draft(args: argparse.Namespace) -> int:
    if args.n < 1:
        raise UsageError(f"--n {args.n}: expected at least 1")
    _refuse_to_overwrite([args.out])
    documents = _read_texts(args.corpus)
    from programs.lms import Roles, bind, check, make_lm
    from trainsets.cases import to_line
    from trainsets.drafting import DraftLog, draft_cases

    lm, notes, kept = make_lm(args.lm, args.api_base), DraftLog(), 0
    check(lm)
    with _only_writer(args.out) as file:
        try:
            with bind(Roles(lm, lm)), _progress(args.n, notes) as advance:
                for case in draft_cases(documents, args.n, args.seed, notes):
                    kept += 1
                    file.write(to_line(case))
                    file.flush()
                    advance(f"{case.kind}: {case.question}")
        except BaseException:
            note(f"{kept} of {args.n} drafts are in {file.name}; repeat the command to go on")
            raise
        Path(file.name).rename(args.out) if kept else Path(file.name).unlink()
    for reason, count in notes.rejected.most_common():
        print(f"rejected {count}: {reason}", file=sys.stderr)
    read = "read each one before you use it" if kept else "nothing was written"
    print(f"{args.out}: {kept} of {args.n} drafts from {notes.n_tries} tries; {read}")
    return 0 if kept else 1


@contextmanager
def _only_writer(out: Path) -> Iterator[TextIO]:
    """Open the file beside `out` that drafts are in until all are made; a repeat finds its LM answers in the cache."""
    from retrievers.locks import locked
    from trainsets.records import part_of

    out.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        try:
            held.enter_context(locked(part_of(out), wait=False, create=True))
        except BlockingIOError:
            raise UsageError(f"{out}: another process is drafting it; wait for it, or name another file") from None
        _refuse_to_overwrite([out])  # that process may have finished it just now
        yield held.enter_context(part_of(out).open("w", encoding="utf-8"))


def _run_import(args: argparse.Namespace) -> int:
    from trainsets.cases import write_cases
    from trainsets.importing import import_set

    corpus, cases = args.out / "corpus.jsonl", args.out / "cases.jsonl"
    _refuse_to_overwrite([corpus, cases])
    imported = import_set(args.format, args.source, args.split, args.config, args.n, args.lang)
    args.out.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(document, ensure_ascii=False) + "\n" for document in imported.documents)
    corpus.write_text("".join(lines), encoding="utf-8")
    write_cases(cases, imported.cases)
    for reason, count in imported.left_out.items():
        print(f"left out {count}: {reason}", file=sys.stderr)
    print(f"{corpus}: {len(imported.documents)} documents\n{cases}: {len(imported.cases)} cases")
    return 0


def _run_report(args: argparse.Namespace) -> int:
    from trainsets.plots import write_plots
    from trainsets.report import PLOTS, write_report

    report = write_report(args.folder, args.out)
    plots = write_plots(args.folder, args.plots or report.parent / PLOTS)
    print("\n".join(map(str, [report, *plots])))
    return 0


def _refuse_to_overwrite(paths: Iterable[Path]) -> None:
    there = next((path for path in paths if path.exists()), None)
    if there:
        raise UsageError(f"{there}: is there already, expected a new name; a gold set is never overwritten")


def _read_texts(corpus: Path) -> dict[str, str]:
    """Read a corpus, or the documents of an index, as whole texts with their titles first."""
    from retrievers.documents import read_documents
    from retrievers.manifest import IndexNotFound, find_generation

    try:
        generation = find_generation(corpus)
    except IndexNotFound:
        return {document.doc_id: f"{document.title}\n{document.text}" for document in read_documents(corpus)}
    from retrievers.store import Store

    texts: dict[str, list[str]] = {}
    for passage in Store(generation / "store.sqlite").iterate_passages():
        texts.setdefault(passage.doc_id, [passage.title]).append(passage.text)
    return {doc_id: "\n".join(parts) for doc_id, parts in texts.items()}


@contextmanager
def _progress(total: int, notes: "DraftLog") -> Iterator[Callable[[str], None]]:
    """Show on stderr how many drafts are done, after how many tries, and how long the rest may take."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft
    from rich.text import Text

    class Tries(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{notes.n_tries} tries")

    columns = (TextColumn("drafting"), BarColumn(), MofNCompleteColumn(), Tries(), TimeLeft())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total)

        def advance(text: str) -> None:
            bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
            bar.advance(task)

        yield advance


if __name__ == "__main__":
    sys.exit(main())
