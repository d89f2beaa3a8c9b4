"""Evaluate programs on gold cases: one row a program, one record a case, each program compared with the first."""

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from programs.cli import (
    PROGRAM_HELP,
    UsageError,
    add_case_flags,
    add_gate_flags,
    add_index_flag,
    add_lm_flags,
    add_tool_flags,
    add_tracking_flags,
    finite,
    positive,
    roles_from,
    run_guarded,
    show_table,
)
from programs.places import INDEX_DIR, RUNS_DIR
from programs.progress import note, progress

if TYPE_CHECKING:
    from programs.lms import MeteredLM, Roles
    from programs.load import Tools
    from programs.rag import NaiveRAG
    from programs.retrieval import RetrievalOnly
    from programs.tracking import TrackedRun
    from trainsets.cases import Case
    from trainsets.comparison import Comparison
    from trainsets.gate import GateResult
    from trainsets.ladder import Rung
    from trainsets.records import Scored
    from trainsets.results import CaseResult

GRADER_TOKENS = 1200  # room for an answer that is taken apart claim by claim


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="evaluate.py", description=__doc__)
    parser.add_argument("programs", nargs="+", metavar="PROGRAM", help=PROGRAM_HELP)
    add_index_flag(parser)
    parser.set_defaults(index=None)
    add_tool_flags(parser)
    parser.add_argument("--corpus", type=Path, metavar="PATH", help="build the index of this corpus first")
    add_case_flags(parser)
    parser.add_argument("--split", help="train, dev or test of a folder or hub set (dev for the sample set)")
    parser.add_argument("--limit", type=positive, metavar="N", help="a stratified sample of N cases")
    parser.add_argument("--threads", type=positive, default=1, help="cases at the same time (1)")
    parser.add_argument("--case-timeout", type=seconds, metavar="SECONDS", help="give a case up after so long")
    parser.add_argument("--out", type=Path, default=RUNS_DIR / "evaluation", metavar="DIR", help="where records go")
    parser.add_argument("--restart", action="store_true", help="run all cases again, also those with a record")
    parser.add_argument(
        "--repeat",
        type=positive,
        default=1,
        metavar="N",
        help="run every case N times, from the second on past the LM cache",
    )
    parser.add_argument("--grader-lm", metavar="LM", help="grade faithfulness and relevancy with this LM too")
    parser.add_argument(
        "--retrieval-only", action="store_true", help="measure searches without an LM; PROGRAM: dense, keyword, hybrid"
    )
    parser.add_argument(
        "--baseline", type=Path, metavar="FILE", help="records of an earlier evaluation; fail if worse beyond chance"
    )
    parser.add_argument("--fail-under", type=finite, metavar="X", help="fail if the score of a program is below X")
    parser.add_argument("--json", action="store_true", help="print the summaries as JSON")
    add_lm_flags(parser)
    add_tracking_flags(parser)
    add_gate_flags(parser, on_by_default=False)
    return parser.parse_args(argv)


def seconds(text: str) -> float:
    """Read a time above zero, for argparse."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no time above 0")
    return value


@dataclass(frozen=True)
class Bench:
    """What all programs of a command are measured with."""

    args: argparse.Namespace
    cases: "Sequence[Case]"
    tools: "Tools"
    roles: "Roles | None"
    grader: "MeteredLM | None"

    @property
    def label(self) -> str:
        """What tables call the LMs."""
        return self.roles.label if self.roles else "retrieval only"


def run(args: argparse.Namespace) -> int:
    """Check and open everything that the flags name, then evaluate in a folder that no other process writes."""
    from retrievers.locks import FolderBusy, hold_lock
    from trainsets.comparison import check_same_set
    from trainsets.records import read_baseline

    check_gate_flags(args)
    cases = choose_cases(args)
    baseline = read_baseline(args.baseline) if args.baseline else []
    if baseline:
        check_same_set(str(args.baseline), baseline, cases)
    tools = open_corpus(args)
    programs = {spec: choose_program(args, spec, tools) for spec in args.programs}
    bench = Bench(args, cases, tools, *choose_lms(args))
    with hold_lock(args.out, "evaluation", FolderBusy):
        return climb_all(bench, programs, baseline)


def climb_all(bench: Bench, programs: "Mapping[str, NaiveRAG | RetrievalOnly]", baseline: "Sequence[Scored]") -> int:
    """Evaluate each program in turn, write records, summary and report, print tables, say whether it passed."""
    from trainsets.gate import say
    from trainsets.ladder import compare_rungs, compare_with, find_failures
    from trainsets.records import write_summary
    from trainsets.report import write_pages

    args, names = bench.args, short_names(bench.args.programs)
    climbed = [climb(bench, spec, names[spec], program) for spec, program in programs.items()]
    rungs = [rung for rung, _ in climbed]
    among = compare_rungs(rungs)
    against = compare_with(rungs, str(args.baseline), baseline) if baseline else []
    result = judge_last(args, rungs) if args.gate else None
    summary = describe(bench, rungs, [*among, *against]) | ({"gate": result.to_json()} if result else {})
    write_summary(args.out, summary)
    report, plots = write_pages(args.out)
    note(f"records: {args.out}/, to look at: {report}")
    log_report([tracked for _, tracked in climbed], report, plots)
    if args.json:
        sys.stdout.write(json.dumps({one.spec: asdict(one.summary) for one in rungs}, indent=2, allow_nan=False) + "\n")
    else:
        show(bench, rungs, [*among, *against])
        sys.stdout.write(say(result) if result else "")
    failures = list(find_failures(rungs, against, args.fail_under))
    failures += [f"the gate rejects {rungs[-1].spec}"] if result and result.verdict == "reject" else []
    for failure in failures:
        note(f"failed: {failure}")
    return 1 if failures else 0


def check_gate_flags(args: argparse.Namespace) -> None:
    """Refuse a gate that has nothing to compare.

    Raises:
        UsageError: Fewer than two programs, or no LM.
        LimitError: A limit that does not exist.
    """
    from trainsets.gate import parse_limits

    parse_limits(args.gate_limit)
    if args.gate and (len(set(args.programs)) < 2 or args.retrieval_only):
        raise UsageError("--gate needs two programs that answer: the one in use first, the new one last")


def judge_last(args: argparse.Namespace, rungs: "Sequence[Rung]") -> "GateResult":
    """Hold the last program against the others, of which the first is the one in use."""
    from trainsets.gate import gate, parse_limits

    return gate(rungs[-1].results, {one.spec: one.results for one in rungs[:-1]}, parse_limits(args.gate_limit))


def compiled_for_others(specs: Sequence[str], label: str) -> str:
    """Say which exports were compiled for other LMs than they are run with here."""
    from programs.export import read_manifest

    lms = {spec: read_manifest(Path(spec)).lm for spec in specs if Path(spec).is_dir()}
    return "".join(f" · {spec} was compiled for {lm}" for spec, lm in lms.items() if lm != label)


def choose_cases(args: argparse.Namespace) -> "list[Case]":
    """Load and sample the gold cases.

    Raises:
        CaseError: There is no such split, a line is wrong, or nothing can be searched for.
        NoGoldAnswerError: A case can't be scored.
    """
    from trainsets.cases import CaseError, load_cases, load_sample, sample
    from trainsets.evaluation import check_scorable
    from trainsets.ranking import to_retrieval_cases

    cases = load_cases(args.cases, args.split) if args.cases else load_sample(args.split or "dev")
    if args.retrieval_only:
        everything, cases = cases, to_retrieval_cases(cases)
        if not cases:
            raise CaseError(
                f"{args.cases or 'sample set'}: no case has gold_ids or qrels, so there is no search to measure"
            )
        tell_left_out(everything, cases)
    cases = sample(cases, args.limit, args.seed) if args.limit else cases
    check_scorable(cases)
    return cases


def tell_left_out(cases: "Sequence[Case]", kept: "Sequence[Case]") -> None:
    """Say how many cases have no evidence that a search could find, and of which kinds they are."""
    ids = {case.id for case in kept}
    kinds = Counter(case.kind or "of no kind" for case in cases if case.id not in ids)
    if kinds:
        told = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common())
        note(f"{kinds.total()} of {len(cases)} cases left out, which name no evidence for a search to find: {told}")


def open_corpus(args: argparse.Namespace) -> "Tools":
    """Open the index; with `--corpus`, build it or bring it up to date before, in a place of its own by default."""
    from programs.load import open_tools

    if args.corpus is None:
        return open_tools(args.index or INDEX_DIR, args.database, args.tools)
    from retrievers import build_index

    name = args.corpus.stem if args.corpus.stem != "corpus" else args.corpus.absolute().parent.name
    place = hashlib.sha256(str(args.corpus.resolve()).encode()).hexdigest()[:8]
    index = args.index or RUNS_DIR / "indexes" / f"{name}-{place}"
    stages: set[str] = set()

    def say(stage: str, done: int, total: int | None) -> None:
        if stage not in stages:
            note(f"index {index}: {stage}" + (f", {total}" if total else ""))
        stages.add(stage)

    report = build_index(args.corpus, index, prune=args.index is None, progress=say)
    state = "up to date" if report.unchanged else f"built in {report.seconds:.0f} s"
    note(f"index {index}: {report.manifest.n_documents} documents, {state}")
    return open_tools(index, args.database, args.tools)


def choose_program(args: argparse.Namespace, spec: str, tools: "Tools") -> "NaiveRAG | RetrievalOnly":
    """Load a program, or with `--retrieval-only` make one that only searches.

    Raises:
        UsageError: There is no such search.
    """
    from programs.load import load_program
    from programs.retrieval import RetrievalOnly

    if not args.retrieval_only:
        return load_program(spec, tools, tracking_uri=args.tracking_uri)
    if spec not in tools.retrievers:
        raise UsageError(f"no search {spec!r}: with --retrieval-only expected {', '.join(tools.retrievers)}")
    return RetrievalOnly(spec, tools.retrievers[spec])


def choose_lms(args: argparse.Namespace) -> "tuple[Roles | None, MeteredLM | None]":
    """Build the LMs that answer and the one that grades, and ask each for a word.

    Raises:
        UsageError: Flags that need an LM, with `--retrieval-only`.
        LMError: An LM does not answer.
    """
    from programs.lms import check, make_lm

    if args.retrieval_only:
        if args.grader_lm or args.repeat > 1:
            raise UsageError("--retrieval-only asks no LM: leave out --grader-lm and --repeat")
        return None, None
    roles = roles_from(args)
    grader = make_lm(args.grader_lm, args.api_base, max_tokens=GRADER_TOKENS) if args.grader_lm else None
    check(roles.decision, roles.answer, *([grader] if grader else []))
    return roles, grader


def climb(bench: Bench, spec: str, name: str, program: "NaiveRAG | RetrievalOnly") -> "tuple[Rung, TrackedRun]":
    """Run one program over the cases, as often as asked for, tracked as one MLflow run."""
    from programs.export import name_of
    from programs.rag import NaiveRAG
    from programs.tracking import EVALUATION_RUN, experiment_name, track
    from trainsets.ladder import Rung
    from trainsets.results import summarise

    args, n_cases = bench.args, len(bench.cases)
    rung, first = Rung(name, spec), args.out / f"{name}.jsonl"
    kind = name_of(program) if isinstance(program, NaiveRAG) else "search"
    experiment = args.experiment or experiment_name(kind, args.cases)
    title = f"{name} · {bench.label.replace('local:', '')} · {n_cases} cases"
    with track(args.tracking_uri, experiment, title, keep=first) as tracked:
        for number in range(1, args.repeat + 1):
            records = args.out / (f"{name}.jsonl" if number == 1 else f"{name}.repeat-{number}.jsonl")
            rung.repeats.append(run_once(bench, spec, program, records, number))
            if number > 1:
                tracked.log_files(records, "records")
        tracked.log_params({"program": name, "lm": bench.label, "n_cases": n_cases} | bench.tools.facts.model_dump())
        tracked.log_tags(EVALUATION_RUN)
        tracked.log_data({"eval": bench.cases}, bench.tools.facts, args.cases)
        tracked.log_evaluation("eval", rung.results, summarise, first, {"program": name})
        score = rung.summary.scores.get("combined")
        tracked.rename(title if score is None else f"{title} · {score:.2f}")
    return rung, tracked


def log_report(runs: "Sequence[TrackedRun]", report: Path, plots: Path) -> None:
    """Log the report of all programs, and its plots, to the MLflow run of each."""
    for tracked in runs:
        tracked.log_files(report)
        tracked.log_files(plots, plots.name)
        if tracked.left:
            note(f"warning: MLflow run {tracked.run_id} lacks the report; it is {report}")


def run_once(
    bench: Bench, spec: str, program: "NaiveRAG | RetrievalOnly", records: Path, number: int
) -> "list[CaseResult]":
    """Run the cases that have no record yet; repeats after the first ask the LM past its cache."""
    from programs.record import from_json, to_json
    from programs.retrieval import search_deeper
    from trainsets.evaluation import Scoring, evaluate_program
    from trainsets.grader import grade_with
    from trainsets.records import find_finished, key_of

    args, cases = bench.args, bench.cases
    settings = settings_of(bench, spec, program) | {"repeat": number}
    keys = {case.id: key_of(case, settings) for case in cases}
    earlier = {} if args.restart else find_finished(records, keys, cases, from_json, note)
    title = spec if number == 1 else f"{spec}, repeat {number}"
    if earlier:
        note(f"{title}: {len(earlier)} of {len(cases)} cases are done already (--restart runs them again)")
    scoring = Scoring(
        indexed_ids=bench.tools.index,
        search_deeper=search_deeper(program.retrievers),
        grade=grade_with(bench.grader) if bench.grader else None,
    )
    with bound(bench, number), progress(title, len(cases) - len(earlier)) as step:
        return evaluate_program(
            program,
            cases,
            records=records,
            describe=to_json,
            step=step,
            n_threads=args.threads,
            timeout_s=args.case_timeout,
            scoring=scoring,
            keys=keys,
            earlier=earlier,
        )


@contextmanager
def bound(bench: Bench, number: int) -> Iterator[None]:
    """Bind the LMs, if there are any, for one run over the cases."""
    from programs.lms import bind

    if bench.roles is None:
        yield
        return
    with bind(bench.roles if number == 1 else bench.roles.without_cache()):
        yield


def settings_of(bench: Bench, spec: str, program: "NaiveRAG | RetrievalOnly") -> dict[str, Any]:
    """Describe what the results of a program depend on."""
    from programs.identity import describe_settings, identify_program
    from programs.retrieval import RetrievalOnly

    described = {"search": spec} if isinstance(program, RetrievalOnly) else identify_program(program)
    lms = [bench.roles.decision, bench.roles.answer] if bench.roles else []
    return describe_settings(described, lms, bench.grader, bench.tools.facts)


def describe(bench: Bench, rungs: "Sequence[Rung]", comparisons: "Sequence[Comparison]") -> dict[str, Any]:
    """Return what `summary.json` holds; the format is documented in `trainsets/records.py`."""
    from trainsets.ladder import describe_rung

    args = bench.args
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "cases": args.cases or "sample",
        "split": args.split or (None if args.cases else "dev"),
        "n_cases": len(bench.cases),
        "lm": bench.label,
        "grader": bench.grader.label if bench.grader else None,
        "repeat": args.repeat,
        "index": bench.tools.facts.model_dump(),
        "programs": [describe_rung(rung) for rung in rungs],
        "comparisons": [asdict(each) for each in comparisons],
    }


def show(bench: Bench, rungs: "Sequence[Rung]", comparisons: "Sequence[Comparison]") -> None:
    """Print the tables and what the comparisons say."""
    from trainsets import tables
    from trainsets.comparison import describe_comparison

    title, summaries = f"{len(bench.cases)} cases · {bench.label}", {one.spec: one.summary for one in rungs}
    if bench.args.retrieval_only:
        show_table(title, *tables.retrieval_table(summaries))
    else:
        title += compiled_for_others(bench.args.programs, bench.label)
        show_table(title, tables.COLUMNS, [tables.table_row(spec, one) for spec, one in summaries.items()])
        show_table("answers and evidence", *tables.quality_table(summaries))
        sys.stdout.write("".join(f"{line}\n" for line in tables.describe_cut_off(summaries)))
    show_table("what became of the cases", *tables.outcome_table({one.name: one.summary for one in rungs}))
    if any(one.slices for one in rungs):
        score = "evidence in the first 10 passages" if bench.args.retrieval_only else "score"
        show_table(
            f"{score} by kind and language", *tables.slice_table({one.name: one.slices for one in rungs}, comparisons)
        )
    if stabilities := {one.name: stability for one in rungs if (stability := one.stability)}:
        show_table("how alike the repeats are", *tables.stability_table(stabilities))
    for each in comparisons:
        sys.stdout.write("".join(f"{line}\n" for line in describe_comparison(each)))


def short_names(specs: Sequence[str]) -> dict[str, str]:
    """Return a name for each program that fits a file: the last part of its path, as much longer as tells it apart."""
    parts = {spec: _parts(spec) for spec in specs}
    names: dict[str, str] = {}
    for spec, own in parts.items():
        others = [other for key, other in parts.items() if key != spec]
        n = next((n for n in range(1, len(own)) if all(other[-n:] != own[-n:] for other in others)), len(own))
        names[spec] = "-".join(part.strip("/") for part in own[-n:])
    return names


def _parts(spec: str) -> tuple[str, ...]:
    if spec.startswith("models:/"):  # NAME@ALIAS, or NAME/NUMBER, which says nothing without its name
        return (spec.removeprefix("models:/").replace("/", "-"),)
    return Path(spec).resolve().parts if "/" in spec or spec in (".", "..") else (spec,)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    args = parse(argv)
    return run_guarded(lambda: run(args))


if __name__ == "__main__":
    sys.exit(main())
