"""Compile a program: gold cases → optimizer → compiled program, measured against its seed, exported, tracked."""

import argparse
import hashlib
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
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
from programs.settings import OPTIMIZERS, Settings, stages_of

if TYPE_CHECKING:
    from programs.journal import Journal
    from programs.lms import MeteredLM, Roles
    from programs.load import Tools
    from programs.optimizers import Compiled
    from programs.rag import NaiveRAG
    from programs.tracking import TrackedRun
    from programs.trials import Watch
    from trainsets.cases import Case
    from trainsets.compiling import Splits
    from trainsets.evaluation import CaseResult

ACCEPT_DEMO = 0.8  # combined score from which a run may become a demo: the answer is right and its evidence was found


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="optimize.py", description=__doc__)
    parser.add_argument("--program", choices=("naive", "hybrid", "agentic"), default="agentic", help="seed program")
    parser.add_argument(
        "--optimizer",
        type=optimizer,
        default="bootstrap",
        metavar="NAME",
        help=f"{', '.join(OPTIMIZERS)}, or chain:ONE,ANOTHER (bootstrap)",
    )
    parser.add_argument("--auto", choices=("light", "medium", "heavy"), default="light", help="size of the run (light)")
    parser.add_argument("--trials", type=positive, metavar="N", help="size of the run in candidates, instead of --auto")
    parser.add_argument("--max-demos", type=positive, default=3, metavar="N", help="demos of a predictor (3)")
    parser.add_argument("--step-demos", action="store_true", help="start from demos made of the gold evidence")
    parser.add_argument("--teacher-lm", metavar="LM", help="LM that runs the program while demos are collected")
    parser.add_argument("--proposer-lm", metavar="LM", help="LM that writes instructions")
    parser.add_argument("--max-lm-calls", type=positive, metavar="N", help="compile with N calls at most")
    parser.add_argument("--max-cost", type=amount, metavar="USD", help="compile until this much is spent")
    parser.add_argument("--max-minutes", type=amount, metavar="M", help="compile for M minutes at most")
    parser.add_argument(
        "--restart", action="store_true", help="forget the trials of an earlier attempt, ask the LM anew"
    )
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


def optimizer(text: str) -> str:
    """Check the name of an optimizer, for argparse."""
    try:
        stages_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def amount(text: str) -> float:
    """Read a number above zero, for argparse."""
    if not (value := float(text)) > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


@dataclass(frozen=True, slots=True)
class LMs:
    """The LMs of a compile. `compiling` are the roles with a meter of their own, which teacher and proposer share."""

    roles: "Roles"
    compiling: "Roles"
    teacher: "MeteredLM | None"
    proposer: "MeteredLM | None"

    @property
    def all(self) -> list["MeteredLM"]:
        """Every LM that is called."""
        return [lm for lm in (self.roles.decision, self.roles.answer, self.teacher, self.proposer) if lm]

    def cost_usd(self) -> float:
        """What compiling has cost this process."""
        return self.compiling.answer.meter.usage.cost_usd


def run(args: argparse.Namespace) -> int:
    """Compile, compare with the seed program on dev cases, export, print the table."""
    from programs.export import check_target, save_export
    from programs.lms import bind
    from programs.load import load_program, open_tools
    from programs.tracking import track

    check_target(args.out)
    settings = settings_from(args)
    splits = splits_from(args, settings)
    tools = open_tools(args.index, args.database, args.tools)
    seed_program = load_program(args.program, tools)
    lms = lms_from(args)
    facts = describe(args, settings, lms, tools, splits)
    name = f"{args.optimizer} · {lms.roles.label} · {datetime.now():%Y-%m-%d %H:%M}"
    with track(args.tracking_uri, args.experiment, name) as tracked:
        tracked.log_params(facts)
        note(f"compiling {args.program} with {args.optimizer} on {len(splits.train)} cases, LM {lms.roles.label}")
        compiled = compile_splits(args, settings, seed_program, splits, tools, lms)
        facts |= {"stopped_at_budget": compiled.stopped_at_budget, "stopped_by": compiled.stopped_by}
        with bind(lms.roles):
            results = {
                "seed": measure("seed", seed_program, splits.dev, args),
                "compiled": measure("compiled", compiled.program, splits.dev, args),
            }
        facts |= {f"{which}_score": mean_score(each) for which, each in results.items()}
        save_export(compiled.program, args.out, lm=lms.roles.label, index=tools.facts, built_by=facts)
        log_results(tracked, args.out, results)
        tracked.rename(f"{name} · {facts['seed_score']:.2f} → {facts['compiled_score']:.2f}")
    show(results, lms.roles)
    sys.stdout.write(closing(args))
    return 0


def settings_from(args: argparse.Namespace) -> Settings:
    """Collect how to compile from the flags."""
    return Settings(
        args.optimizer, args.max_demos, args.auto, args.trials, args.seed, args.threads, step_demos=args.step_demos
    )


def splits_from(args: argparse.Namespace, settings: Settings) -> "Splits":
    """Read the cases that the flags ask for."""
    from trainsets.cases import SAMPLE_DIR
    from trainsets.compiling import load_splits

    return load_splits(
        args.cases or SAMPLE_DIR,
        needed_by=args.optimizer,
        with_val=settings.needs_valset,
        n_train=args.limit,
        n_dev=args.eval_limit,
        seed=args.seed,
    )


def lms_from(args: argparse.Namespace) -> LMs:
    """Build every LM of the compile and check that it answers; comparisons are on a meter apart, and always whole."""
    from programs.lms import check, make_lm

    roles = roles_from(args)
    teacher = make_lm(args.teacher_lm, args.api_base) if args.teacher_lm else None
    proposer = make_lm(args.proposer_lm, args.api_base) if args.proposer_lm else None
    check(*(lm for lm in (roles.decision, roles.answer, teacher, proposer) if lm))
    compiling = roles.with_budget(None)
    meter = compiling.answer.meter
    others = [lm.copy(meter=meter) if lm else None for lm in (teacher, proposer)]
    return LMs(roles, compiling, *others)


def compile_splits(
    args: argparse.Namespace, settings: Settings, program: "NaiveRAG", splits: "Splits", tools: "Tools", lms: LMs
) -> "Compiled":
    """Compile with a journal: a command that is repeated goes on where the one before it ended."""
    from programs.lms import bind
    from programs.optimizers import compile_program
    from programs.step_demos import with_demos
    from trainsets.cases import to_example

    step_demos = make_step_demos(program, splits) if settings.needs_step_demos else {}
    start = with_demos(program, step_demos, settings.max_demos) if step_demos else program
    with open_journal(args, settings, start, splits, tools, lms) as journal, bind(lms.compiling, journal.generation):
        watch = make_watch(args, lms, journal)
        compiled = compile_program(
            start,
            metric,
            [to_example(case) for case in splits.train],
            [to_example(case) for case in splits.val],
            settings,
            lms.teacher,
            proposer=lms.proposer,
            step_demos=step_demos,
            feedback=explain_case,
            embed=tools.index.embedder.embed_queries,
            watch=watch,
        )
    report_compile(compiled, program, watch, lms)
    if journal.differs_from:
        note(f"trial {journal.differs_from} came out differently than before: the LM answers otherwise now")
    return compiled


def make_step_demos(program: "NaiveRAG", splits: "Splits") -> dict[str, list[Any]]:
    """Make demos from the gold evidence of the train cases; what held-out cases ask or rest on stands in none."""
    from programs.step_demos import GuidedCase, build_step_demos
    from trainsets.cases import to_example
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


def open_journal(
    args: argparse.Namespace, settings: Settings, program: "NaiveRAG", splits: "Splits", tools: "Tools", lms: LMs
) -> "Journal":
    """Open the journal of this very compile; limits and threads may change from one attempt to the next."""
    from programs.export import render_prompts
    from programs.journal import Journal
    from trainsets.cases import to_line

    facts = asdict(settings) | {"n_threads": None, "accept_demo": ACCEPT_DEMO, "bounds": asdict(program.bounds)}
    facts |= {"lms": [lm.model for lm in lms.all], "teacher_lm": args.teacher_lm, "proposer_lm": args.proposer_lm}
    facts |= {"corpus_version": tools.facts.corpus_version, "embedder": tools.facts.embedder_fingerprint}
    facts |= {"prompts": digest(render_prompts(program))}
    facts |= {f"{split}_cases": digest("".join(map(to_line, getattr(splits, split)))) for split in ("train", "val")}
    journal = Journal(RUNS_DIR / "compile", facts, restart=args.restart)
    if journal.recorded:
        best = max(trial.score for trial in journal.recorded)
        note(f"going on after {len(journal.recorded)} trials of an earlier attempt, best score {best:.3f}")
    return journal


def digest(text: str) -> str:
    """Name a text by its hash."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def make_watch(args: argparse.Namespace, lms: LMs, journal: "Journal") -> "Watch":
    """Set up what counts the calls, keeps the trials and tells the progress."""
    from programs.budget import Budget
    from programs.trials import Watch

    def cost_usd() -> float:
        return journal.spent_before_usd + lms.cost_usd()

    budget = Budget(args.max_lm_calls, args.max_cost, args.max_minutes, cost_usd)
    return Watch(budget, journal, lambda standing: note(standing.line()), cost_usd)


def metric(example: Any, prediction: Any, trace: Any = None) -> float | bool:
    """Score a run 0..1; while demos are collected (a trace is given), say whether it may become one."""
    from trainsets.metrics import combined_score

    score = combined_score(example.case, prediction)
    return score if trace is None else score >= ACCEPT_DEMO


def explain_case(example: Any, prediction: Any, predictor: str) -> str:
    """Tell what the gold says of a predictor's part in a run."""
    from trainsets.feedback import explain

    return explain(example.case, prediction, predictor)


def describe(
    args: argparse.Namespace, settings: Settings, lms: LMs, tools: "Tools", splits: "Splits"
) -> dict[str, Any]:
    """Return what this compile is made of, for the manifest and MLflow; no addresses, no secrets."""
    return {
        "program": args.program,
        **asdict(settings),
        "effective_seed": settings.effective_seed,
        "accept_demo": ACCEPT_DEMO,
        "lm": lms.roles.label,
        "teacher_lm": lms.teacher.label if lms.teacher else None,
        "proposer_lm": lms.proposer.label if lms.proposer else None,
        "corpus_version": tools.facts.corpus_version,
        "embedder": tools.facts.embedder,
        "n_train": len(splits.train),
        "n_val": len(splits.val),
        "n_dev": len(splits.dev),
    }


def report_compile(compiled: "Compiled", seed_program: "NaiveRAG", watch: "Watch", lms: LMs) -> None:
    """Say what the optimizer put into the program, and what it took."""
    from programs.export import render_prompts

    demos = {name: len(predictor.demos) for name, predictor in compiled.program.named_predictors()}
    listed = ", ".join(f"{name} {n}" for name, n in demos.items() if n) or "none"
    n_calls, n_paid = watch.budget.n_calls, lms.compiling.answer.meter.paid_calls
    spent = f"{n_calls} LM calls" + (f", {n_paid} of them made now" if n_paid < n_calls else "")
    note(f"demos: {listed}; {spent}" + (" (budget reached, best so far)" if compiled.stopped_by else ""))
    if compiled.stopped_by:
        note(f"{compiled.stopped_by}; repeat the command with a higher limit to go on from here")
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
