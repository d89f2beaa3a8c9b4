"""Compile a program: gold cases → optimizer → compiled program, measured against its seed, exported, tracked."""

import argparse
import math
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from programs.cli import lm_flags, roles_from, run_guarded, show_table
from programs.compile_flags import limits_from, parse, settings_from
from programs.places import RUNS_DIR
from programs.progress import note, progress

if TYPE_CHECKING:
    from programs.budget import Budget
    from programs.compile_lms import CompileLMs
    from programs.lms import Roles
    from programs.load import Tools
    from programs.optimizers import Compiled
    from programs.preflight import Preflight
    from programs.probing import ProbeRun
    from programs.rag import NaiveRAG
    from programs.settings import Settings
    from programs.tracking import TrackedRun
    from trainsets.cases import Case
    from trainsets.compiling import Splits
    from trainsets.evaluation import CaseResult
    from trainsets.gate import GateResult

PRUNED_ON = 12  # cases: each demo is left out of a run over all of them


@dataclass(frozen=True, slots=True)
class Setup:
    """What a compile is made with; `program` is the seed."""

    args: argparse.Namespace
    settings: "Settings"
    splits: "Splits"
    tools: "Tools"
    program: "NaiveRAG"
    lms: "CompileLMs"


def set_up(args: argparse.Namespace) -> Setup:
    """Check and open everything that the flags name, before any work."""
    from programs.compile_lms import make_compile_lms
    from programs.export import check_target
    from programs.load import load_program, open_tools
    from trainsets.cases import SAMPLE_DIR
    from trainsets.compiling import load_splits
    from trainsets.gate import parse_limits

    check_target(args.out)
    parse_limits(args.gate_limit)
    settings = settings_from(args)
    splits = load_splits(
        args.cases or SAMPLE_DIR,
        needed_by=args.optimizer,
        with_val=settings.needs_valset,
        n_train=args.limit,
        n_dev=args.eval_limit,
        seed=args.seed,
    )
    tools = open_tools(args.index, args.database, args.tools)
    program = load_program(args.program, tools)
    lms = make_compile_lms(roles_from(args), args.teacher_lm, args.proposer_lm, args.api_base)
    return Setup(args, settings, splits, tools, program, lms)


def run(args: argparse.Namespace) -> int:
    """Compile, compare with the seed program on dev cases, export, print the table."""
    from programs.load import load_program
    from programs.preflight import CompileRefusedError
    from programs.tracking import experiment_name, track
    from retrievers.locks import hold_lock

    setup, uri = set_up(args), args.tracking_uri
    champion = {"champion": load_program(args.champion, setup.tools, tracking_uri=uri)} if args.champion else {}
    if args.dry_run:
        return dry_run(setup)
    model = experiment_name(args.program, args.cases)
    facts = describe(setup) | {"model": model}
    lm = setup.lms.roles.label.replace("local:", "")  # in the list of runs every letter counts
    name = f"{setup.settings.label} · {lm} · {datetime.now():%Y-%m-%d %H:%M}"
    with track(uri, args.experiment or model, name, keep=args.out) as tracked:
        log_setup(setup, facts, tracked)
        note(f"compiling {args.program} with {args.optimizer} on {facts['n_train']} cases, LM {facts['lm']}")
        try:
            compiled = compile_splits(setup, tracked)
        except CompileRefusedError as refused:
            note(f"{refused}refused; --force compiles all the same")
            tracked.rename(f"{name} · refused")
            return 1
        facts |= {"stopped_at_budget": compiled.stopped_at_budget, "stopped_by": compiled.stopped_by}
        programs = {"seed": setup.program, "compiled": compiled.program} | champion
        with hold_lock(RUNS_DIR / "compile", "measurement", wait=note):
            say_all = finish(setup, programs, facts, tracked, name)
    return say_all()  # when all is logged: whoever reads it may have gone


def describe(setup: Setup) -> dict[str, Any]:
    """Return what this compile is made of, for the manifest and MLflow; no addresses, no secrets."""
    from programs.decisions import thresholds_of
    from trainsets.compiling import ACCEPT_DEMO

    settings, lms, splits, index = setup.settings, setup.lms, setup.splits, setup.tools.facts
    return {
        "program": setup.args.program,
        **asdict(settings),
        "effective_seed": settings.effective_seed,
        "accept_demo": ACCEPT_DEMO,
        "lm": lms.roles.label,
        "teacher_lm": lms.teacher.label if lms.teacher else None,
        "proposer_lm": lms.proposer.label if lms.proposer else None,
        "corpus_version": index.corpus_version,
        "embedder": index.embedder,
        "n_train": len(splits.train),
        "n_val": len(splits.val),
        "n_dev": len(splits.dev),
        "seed_thresholds": thresholds_of(setup.program) or None,
    }


def describe_data(setup: Setup) -> dict[str, Any]:
    """Return what decides how a compile goes beside its settings, its LMs and its program."""
    from trainsets.compiling import ACCEPT_DEMO

    args, splits, index = setup.args, setup.splits, setup.tools.facts
    return {
        "accept_demo": ACCEPT_DEMO,
        "teacher_lm": args.teacher_lm,
        "proposer_lm": args.proposer_lm,
        "corpus_version": index.corpus_version,
        "embedder": index.embedder_fingerprint,
        "train_cases": splits.digest("train"),
        "val_cases": splits.digest("val"),
    }


def log_setup(setup: Setup, facts: Mapping[str, Any], tracked: "TrackedRun") -> None:
    """Log what the compile is made of, and the data it rests on."""
    splits = setup.splits
    tracked.log_params(facts)
    tracked.log_data({"train": splits.train, "val": splits.val, "dev": splits.dev}, setup.tools.facts, setup.args.cases)


def compile_splits(setup: Setup, tracked: "TrackedRun") -> "Compiled":
    """Compile with a journal: a command that is repeated goes on where the one before it ended."""
    from programs.compile_run import make_watch, open_journal, report_compile
    from programs.lms import bind
    from programs.optimizers import compile_program
    from programs.preflight import CompileRefusedError
    from trainsets.cases import to_example
    from trainsets.compiling import metric
    from trainsets.feedback import explain

    args, splits, lms, settings = setup.args, setup.splits, setup.lms, setup.settings
    start, step_demos = start_with_step_demos(setup)
    journals = RUNS_DIR / "compile"
    with (
        open_journal(journals, start, settings, lms, describe_data(setup), restart=args.restart) as journal,
        bind(lms.compiling, journal.generation),
    ):
        watch = make_watch(journal, lms, limits_from(args), tracked.log_candidate)
        report = look_ahead(setup, start, watch.budget)
        if report.refusals and not args.force:
            raise CompileRefusedError(report.say())
        note(report.say().rstrip())
        compiled = compile_program(
            start,
            metric,
            [to_example(case) for case in splits.train],
            [to_example(case) for case in splits.val],
            settings,
            lms.teacher,
            proposer=lms.proposer,
            step_demos=step_demos,
            feedback=lambda example, prediction, name: explain(example.case, prediction, name),
            embed=setup.tools.index.embedder.embed_queries,
            watch=watch,
        )
        if args.prune_demos and not compiled.stopped_by:
            compiled = prune(setup, compiled, watch.budget)
    report_compile(compiled, setup.program, watch, lms)
    if journal.differs_from:
        note(f"trial {journal.differs_from} came out differently than before: the LM answers otherwise now")
    return compiled


def start_with_step_demos(setup: Setup) -> tuple["NaiveRAG", dict[str, list[Any]]]:
    """Give the program its step demos, if it is to start from some; returns it and all there are."""
    from programs.step_demos import with_demos

    if not setup.settings.needs_step_demos:
        return setup.program, {}
    step_demos = make_step_demos(setup.program, setup.splits)
    return with_demos(setup.program, step_demos, setup.settings.max_demos), step_demos


def make_step_demos(program: "NaiveRAG", splits: "Splits") -> dict[str, list[Any]]:
    """Make demos from the gold evidence of the train cases; what held-out cases ask or rest on stands in none."""
    from programs.step_demos import GuidedCase, build_step_demos
    from trainsets.cases import to_example
    from trainsets.compiling import metric
    from trainsets.gold import Gold, held_out_texts, holds_held_out

    note(f"making step demos from {len(splits.train)} cases")
    held_out = held_out_texts(splits.held_out)
    demos = build_step_demos(
        program,
        [GuidedCase(to_example(case), Gold(case)) for case in splits.train],
        accept=lambda example, prediction: bool(metric(example, prediction, trace=())),
        is_allowed=lambda texts: not holds_held_out(texts, held_out),
    )
    note("step demos to choose from: " + (", ".join(f"{name} {len(each)}" for name, each in demos.items()) or "none"))
    return demos


def look_ahead(setup: Setup, program: "NaiveRAG", budget: "Budget") -> "Preflight":
    """Look whether the compile can lead anywhere and what it will cost; the LMs are bound."""
    from programs.budget import count_calls
    from programs.estimate import Task
    from programs.preflight import Check, Subject, look
    from programs.probing import MOST_PROBED
    from trainsets.compiling import describe_distance, in_probing_order
    from trainsets.gate import parse_limits

    args, settings, splits = setup.args, setup.settings, setup.splits
    n_train, n_val, n_dev = map(len, (splits.train, splits.val, splits.dev))
    subject = Subject(
        stages=settings.stages,
        program=program,
        task=Task(n_train, n_val, len(program.predictors()), settings.max_demos, settings.auto, settings.n_trials),
        cases=in_probing_order(splits.train, args.probe, MOST_PROBED, args.seed),
        run=lambda case: probe_case(program, case),
        lms=setup.lms,
        limits=limits_from(args),
        n_probes=min(args.probe, args.max_lm_calls // 20) if args.max_lm_calls else args.probe,
        n_dev=n_dev,
        n_measured=(n_dev, n_dev * (2 if args.champion else 1)),
        least_dev=parse_limits(args.gate_limit).min_cases if args.gate else 0,
        n_threads=settings.n_threads,
    )
    distance, is_apart = describe_distance(splits)
    with count_calls(budget):
        return look(subject, Check("held out", "ok" if is_apart else "doubt", distance))


def probe_case(program: "NaiveRAG", case: "Case") -> "ProbeRun":
    """Run one train case and see whether the run might become a demo."""
    from programs.probing import describe_run
    from trainsets.compiling import ACCEPT_DEMO
    from trainsets.evaluation import run_cases

    [result] = run_cases(program, [case])
    passed = (result.score or 0.0) >= ACCEPT_DEMO
    return describe_run(case.question, result.prediction, passed, result.outcome, result.error, result.seconds)


def dry_run(setup: Setup) -> int:
    """Look ahead, say what was seen, and leave it at that."""
    from programs.budget import Budget
    from programs.lms import bind

    start, _ = start_with_step_demos(setup)
    with bind(setup.lms.compiling):
        report = look_ahead(setup, start, Budget(setup.args.max_lm_calls))
    sys.stdout.write(report.say())
    return 1 if report.refusals else 0


def prune(setup: Setup, compiled: "Compiled", budget: "Budget") -> "Compiled":
    """Drop the demos without which no score falls, on cases that no demo comes from."""
    from programs import compile_run
    from trainsets.compiling import pick_unseen
    from trainsets.evaluation import run_cases

    shown = {dict(demo).get("question") for one in compiled.program.predictors() for demo in one.demos}
    cases = pick_unseen(setup.splits, shown, PRUNED_ON, setup.args.seed)
    if not cases:
        note("pruning: no case is left that no demo comes from")
        return compiled

    def score(program: "NaiveRAG") -> float:
        # A case that errors counts as lost: a demo that keeps the output readable pays for its tokens.
        results = run_cases(program, cases, n_threads=setup.args.threads)
        return math.fsum(one.score or 0.0 for one in results) / len(cases)

    return compile_run.prune(compiled, score, budget)


def finish(
    setup: Setup, programs: Mapping[str, "NaiveRAG"], facts: dict[str, Any], tracked: "TrackedRun", name: str
) -> Callable[[], int]:
    """Measure all programs, give the verdict, export the compiled one, log everything; returns what prints it."""
    from programs.changes import write_changes
    from programs.decisions import thresholds_of
    from programs.export import choose_place, save_export
    from programs.lms import bind
    from trainsets.evaluation import summarise
    from trainsets.gate import say

    args, roles = setup.args, setup.lms.roles
    with bind(roles):
        results = {which: measure(which, program, setup.splits.dev, args) for which, program in programs.items()}
    scores = {which: summarise(each).scores for which, each in results.items()}
    fitted = {"compiled_thresholds": thresholds_of(programs["compiled"]) or None}
    tracked.log_params(fitted)
    facts |= fitted
    facts |= {f"{which}_score": each.get("combined") or 0.0 for which, each in scores.items()}  # without what errored
    result = decide(setup, results, programs["compiled"]) if args.gate else None
    facts |= {"gate": result.to_json()} if result else {}
    page = RUNS_DIR / "compile" / "changes.html"
    told, changes = write_changes(setup.program, programs["compiled"], scores["seed"], scores["compiled"], page)
    out = choose_place(args.out, result.verdict if result else None, args.champion)
    save_export(programs["compiled"], out, lm=roles.label, index=setup.tools.facts, built_by=facts, changes=changes)
    log_results(tracked, out, results)
    tracked.log_files(page)
    tracked.log_prompts(setup.program, programs["compiled"])
    tracked.log_spend("compile", setup.lms.compiling.answer.meter.usage)
    verdict = result.verdict if result else None
    tracked.log_tags({"gate": verdict})
    tracked.register(facts["model"], out, {"gate": verdict}, champion=verdict == "promote")
    tracked.rename(f"{name} · {facts['seed_score']:.2f} → {facts['compiled_score']:.2f}")

    def say_all() -> int:
        show(results, roles)
        sys.stdout.write(told + (say(result) if result else "") + closing(args, out))
        return 1 if verdict == "reject" else 0

    return say_all


def measure(which: str, program: "NaiveRAG", cases: list["Case"], args: argparse.Namespace) -> list["CaseResult"]:
    """Evaluate one program on the dev cases, with its records in the runs folder."""
    from programs.record import to_json
    from trainsets.evaluation import evaluate_program

    records = RUNS_DIR / "compile" / f"{which}.jsonl"
    with progress(f"evaluating {which}", len(cases)) as step:
        return evaluate_program(program, cases, records=records, describe=to_json, step=step, n_threads=args.threads)


def decide(setup: Setup, results: Mapping[str, list["CaseResult"]], program: "NaiveRAG") -> "GateResult":
    """Hold the compiled program against what is in use and the seed, and its prompts against held-out gold."""
    from programs.changes import prompt_texts
    from trainsets.gate import gate, parse_limits
    from trainsets.leaks import find_leaks

    splits = setup.splits
    found = find_leaks(prompt_texts(program), splits.held_out, [*splits.train, *splits.val])
    leaks = [f"{leak.case_id}: {leak.what}" for leak in found]
    baselines = {which: results[which] for which in ("champion", "seed") if which in results}
    return gate(results["compiled"], baselines, parse_limits(setup.args.gate_limit), leaks)


def log_results(tracked: "TrackedRun", export: Path, results: Mapping[str, list["CaseResult"]]) -> None:
    """Log the summaries, the records, their report and the export."""
    from trainsets.evaluation import summarise
    from trainsets.report import write_pages

    folder = RUNS_DIR / "compile"
    for which, each in results.items():
        tracked.log_evaluation(which, each, summarise, folder / f"{which}.jsonl", {"program": which})
    report, plots = write_pages(folder, list(results))
    tracked.log_files(report)
    tracked.log_files(plots, plots.name)
    tracked.log_files(export, "export")


def show(results: Mapping[str, list["CaseResult"]], roles: "Roles") -> None:
    """Print a row each, what was cut off, and whether the difference is more than chance."""
    from trainsets.evaluation import COLUMNS, compare, summarise, table_row
    from trainsets.tables import describe_cut_off

    summaries = {which: summarise(each) for which, each in results.items()}
    rows = [table_row(which, one) for which, one in summaries.items()]
    show_table(f"{len(results['seed'])} dev cases · {roles.label}", COLUMNS, rows)
    sys.stdout.write("".join(f"{line}\n" for line in describe_cut_off(summaries)))
    sys.stdout.write(compare("compiled", results["compiled"], "seed", results["seed"]) + "\n")


def closing(args: argparse.Namespace, out: Path) -> str:
    """Return where everything is and what to do with it."""
    from programs.addresses import without_secrets

    store = without_secrets(args.tracking_uri)
    ui = store if store.startswith("http") else f"mlflow ui --backend-store-uri {shlex.quote(store)}"
    ask = f"--program {shlex.quote(str(out))} --index {shlex.quote(str(args.index))}{lm_flags(args)}"
    return f'export:  {out}\nMLflow:  {ui}\nask:     python -m programs ask "…" {ask}\n'


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    args = parse(argv, __doc__)
    return run_guarded(lambda: run(args))


if __name__ == "__main__":
    sys.exit(main())
