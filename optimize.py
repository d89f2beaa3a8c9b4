"""Compile a program: gold cases → optimizer → compiled program, measured against its seed, exported, tracked."""

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from programs.cli import (
    EXPORT_DIR,
    RUNS_DIR,
    add_case_flags,
    add_index_flag,
    add_lm_flags,
    add_tool_flags,
    add_tracking_flags,
    note,
    positive,
    progress,
    roles_from,
    run_guarded,
    show_table,
)

if TYPE_CHECKING:
    from programs.lms import Roles
    from programs.load import Tools
    from programs.optimizers import Compiled, Settings
    from programs.rag import NaiveRAG
    from programs.tracking import TrackedRun
    from trainsets.cases import Case
    from trainsets.evaluation import CaseResult

ACCEPT_DEMO = 0.8  # combined score from which a run may become a demo: the answer is right and its evidence was found


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="optimize.py", description=__doc__)
    parser.add_argument("--program", choices=("naive", "hybrid", "agentic"), default="agentic", help="seed program")
    parser.add_argument("--optimizer", choices=("bootstrap", "mipro"), default="bootstrap")
    parser.add_argument("--auto", choices=("light", "medium", "heavy"), default="light", help="size of a mipro run")
    parser.add_argument("--trials", type=positive, metavar="N", help="trials of a mipro run, instead of --auto")
    parser.add_argument("--max-demos", type=positive, default=3, metavar="N", help="demos of a predictor (3)")
    parser.add_argument("--teacher-lm", metavar="LM", help="LM that runs the program while demos are collected")
    parser.add_argument("--max-lm-calls", type=positive, metavar="N", help="compile with N calls at most")
    parser.add_argument("--limit", type=positive, metavar="N", help="train on a stratified sample of N cases")
    parser.add_argument("--eval-limit", type=positive, metavar="N", help="compare on N dev cases, a stratified sample")
    parser.add_argument("--threads", type=positive, default=1, help="cases at the same time (1)")
    parser.add_argument("--out", type=Path, default=EXPORT_DIR, metavar="DIR", help=f"export folder ({EXPORT_DIR})")
    add_index_flag(parser)
    add_tool_flags(parser)
    add_case_flags(parser)
    add_lm_flags(parser)
    add_tracking_flags(parser)
    return parser.parse_args(argv)


def run(args: argparse.Namespace) -> int:
    """Compile, compare with the seed program on dev cases, export, print the table."""
    from programs.export import check_target, save_export
    from programs.lms import bind, check, make_lm
    from programs.load import load_program, open_tools
    from programs.optimizers import Settings, compile_program
    from programs.tracking import track
    from trainsets.cases import to_example

    check_target(args.out)
    train, val, dev = load_splits(args)
    tools = open_tools(args.index, args.database, args.tools)
    seed_program = load_program(args.program, tools)
    settings = Settings(args.optimizer, args.max_demos, args.auto, args.trials, args.seed, args.threads)
    roles = roles_from(args)
    compiling = roles.with_budget(args.max_lm_calls)  # the comparison always runs to its end
    teacher = make_lm(args.teacher_lm, args.api_base, compiling.answer.meter) if args.teacher_lm else None
    check(roles.decision, roles.answer, *([teacher] if teacher else []))
    name = f"{args.optimizer} · {roles.label} · {datetime.now():%Y-%m-%d %H:%M}"
    with track(args.tracking_uri, args.experiment, name) as tracked:
        facts = describe(args, settings, roles, tools) | {"teacher_lm": teacher.label if teacher else None}
        facts |= {"n_train": len(train), "n_val": len(val), "n_dev": len(dev)}
        tracked.log_params(facts)
        note(f"compiling {args.program} with {args.optimizer} on {len(train)} cases, LM {roles.label}")
        examples, valset = [to_example(case) for case in train], [to_example(case) for case in val]
        with bind(compiling):
            compiled = compile_program(seed_program, metric, examples, valset, settings, teacher)
        facts["stopped_at_budget"] = compiled.stopped_at_budget
        report_compile(compiled, seed_program, compiling)
        with bind(roles):
            results = {
                "seed": measure("seed", seed_program, dev, args),
                "compiled": measure("compiled", compiled.program, dev, args),
            }
        facts |= {f"{which}_score": mean_score(each) for which, each in results.items()}
        save_export(compiled.program, args.out, lm=roles.label, index=tools.facts, built_by=facts)
        log_results(tracked, args.out, results)
        tracked.rename(f"{name} · {facts['seed_score']:.2f} → {facts['compiled_score']:.2f}")
    show(results, roles)
    sys.stdout.write(closing(args))
    return 0


def load_splits(args: argparse.Namespace) -> tuple[list["Case"], list["Case"], list["Case"]]:
    """Return train, validation and dev cases; validation is every fourth train case, so that dev stays unseen.

    Raises:
        CaseError: A split is missing or too small, or train and dev share a question.
        NoGoldAnswerError: A case can't be scored.
    """
    from trainsets.cases import SAMPLE_DIR, CaseError, load_cases, sample
    from trainsets.checks import check_leaks
    from trainsets.evaluation import check_scorable

    source = args.cases or SAMPLE_DIR
    train, dev = load_cases(source, "train"), load_cases(source, "dev")
    if leaks := check_leaks({"train": train, "dev": dev}):
        raise CaseError(f"{source}: train and dev are not apart: {leaks[0]}")
    check_scorable([*train, *dev])
    train = [case for case in train if case.kind != "chitchat"]  # no LM call, nothing to learn
    train = sample(train, args.limit, args.seed) if args.limit else train
    n_needed = 1 if args.optimizer == "bootstrap" else 2
    if len(train) < n_needed:
        raise CaseError(f"{source}: {len(train)} train cases to compile on, {args.optimizer} needs {n_needed} at least")
    dev = sample(dev, args.eval_limit, args.seed) if args.eval_limit else dev
    if args.optimizer == "bootstrap":
        return train, [], dev
    return [case for n, case in enumerate(train) if n % 4], train[::4], dev


def metric(example: Any, prediction: Any, trace: Any = None) -> float | bool:
    """Score a run 0..1; while demos are collected (a trace is given), say whether it may become one."""
    from trainsets.metrics import combined_score

    score = combined_score(example.case, prediction)
    return score if trace is None else score >= ACCEPT_DEMO


def describe(args: argparse.Namespace, settings: "Settings", roles: "Roles", tools: "Tools") -> dict[str, Any]:
    """Return what this compile is made of, for the manifest and MLflow; no addresses, no secrets."""
    return {
        "program": args.program,
        **asdict(settings),
        "effective_seed": settings.effective_seed,
        "accept_demo": ACCEPT_DEMO,
        "lm": roles.label,
        "corpus_version": tools.facts.corpus_version,
        "embedder": tools.facts.embedder,
    }


def report_compile(compiled: "Compiled", seed_program: "NaiveRAG", roles: "Roles") -> None:
    """Say what the optimizer put into the program."""
    from programs.export import render_prompts

    demos = {name: len(predictor.demos) for name, predictor in compiled.program.named_predictors()}
    listed = ", ".join(f"{name} {n}" for name, n in demos.items() if n) or "none"
    spent = roles.answer.meter.paid_calls
    note(
        f"demos: {listed}; {spent} LM calls" + (" (budget reached, best so far)" if compiled.stopped_at_budget else "")
    )
    if render_prompts(compiled.program) == render_prompts(seed_program):
        note("nothing that was tried was good enough to be kept: the compiled program equals the seed")


def measure(which: str, program: "NaiveRAG", cases: list["Case"], args: argparse.Namespace) -> list["CaseResult"]:
    """Evaluate one program on the dev cases, with its records in the runs folder."""
    from programs.record import to_json
    from trainsets.evaluation import evaluate_program

    records = RUNS_DIR / "compile" / f"{which}.jsonl"
    with progress(f"evaluating {which}", len(cases)) as step:
        return evaluate_program(program, cases, records=records, describe=to_json, step=step, n_threads=args.threads)


def mean_score(results: list["CaseResult"]) -> float:
    """Return the mean combined score; a case that errored counts as missing, and is shown in the table."""
    from trainsets.evaluation import summarise

    return summarise(results).scores.get("combined") or 0.0


def log_results(tracked: "TrackedRun", export: Path, results: Mapping[str, list["CaseResult"]]) -> None:
    """Log both summaries, the records and the export."""
    from trainsets.evaluation import summarise

    for which, each in results.items():
        tracked.log_summary(which, summarise(each))
        tracked.log_files(RUNS_DIR / "compile" / f"{which}.jsonl", "records")
    tracked.log_files(export, "export")


def show(results: Mapping[str, list["CaseResult"]], roles: "Roles") -> None:
    """Print both rows, and whether the difference is more than chance."""
    from trainsets.evaluation import COLUMNS, compare, summarise, table_row

    n = len(results["seed"])
    rows = [table_row(which, summarise(each)) for which, each in results.items()]
    show_table(f"{n} dev cases · {roles.label}", COLUMNS, rows)
    sys.stdout.write(compare("compiled", results["compiled"], "seed", results["seed"]) + "\n")


def closing(args: argparse.Namespace) -> str:
    """Return where everything is and what to do with it."""
    from programs.addresses import without_secrets

    store = without_secrets(args.tracking_uri)
    ui = store if store.startswith("http") else f"mlflow ui --backend-store-uri {shlex.quote(store)}"
    ask = f"--program {shlex.quote(str(args.out))} --index {shlex.quote(str(args.index))}"
    return f'export:  {args.out}\nMLflow:  {ui}\nask:     python -m programs ask "…" {ask}\n'


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    args = parse(argv)
    return run_guarded(lambda: run(args))


if __name__ == "__main__":
    sys.exit(main())
