"""What goes with a compile: its journal, the watch that counts and tells, the pruning at its end, and what it took."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from programs.budget import Budget, count_calls
from programs.compile_lms import CompileLMs
from programs.export import render_prompts
from programs.journal import Journal, Trial
from programs.optimizers import Compiled
from programs.progress import note
from programs.pruning import prune_demos
from programs.rag import NaiveRAG
from programs.settings import Limits, Settings
from programs.trials import Watch, name_of


def open_journal(
    folder: Path,
    program: NaiveRAG,
    settings: Settings,
    lms: CompileLMs,
    others: Mapping[str, Any],
    *,
    restart: bool = False,
) -> Journal:
    """Open the journal of this very compile; limits and threads may change from one attempt to the next.

    Args:
        folder: Where journals are.
        program: What the optimizers start from.
        settings: How they compile it.
        lms: With which LMs.
        others: What else decides how the compile goes: cases, index, metric.
        restart: Whether to forget an earlier attempt.

    Raises:
        FolderBusy: Another process is running this compile.
        JournalError: The file is no journal.
    """
    facts = asdict(settings) | {"n_threads": None, "bounds": asdict(program.bounds), "program": name_of(program)}
    journal = Journal(folder, facts | {"lms": [lm.model for lm in lms.all]} | dict(others), restart=restart)
    if journal.recorded:
        best = max(trial.score for trial in journal.recorded)
        note(f"going on after {len(journal.recorded)} trials of an earlier attempt, best score {best:.3f}")
    return journal


def make_watch(journal: Journal, lms: CompileLMs, limits: Limits, log: Callable[[Trial, NaiveRAG], None]) -> Watch:
    """Set up what counts the calls, keeps the trials and tells the progress; `log` gets every trial."""

    def cost_usd() -> float:
        return journal.spent_before_usd + lms.cost_usd()

    budget = Budget(limits.max_lm_calls, limits.max_cost, limits.max_minutes, cost_usd)
    return Watch(budget, journal, lambda standing: note(standing.line()), cost_usd, log)


def prune(compiled: Compiled, score: Callable[[NaiveRAG], float], budget: Budget) -> Compiled:
    """Drop the demos without which no score falls, and say it."""
    with count_calls(budget):
        pruned = prune_demos(compiled.program, score)
    note(pruned.say())
    return replace(compiled, program=pruned.program)


def report_compile(compiled: Compiled, seed_program: NaiveRAG, watch: Watch, lms: CompileLMs) -> None:
    """Say what the optimizer put into the program, and what it took."""
    demos = {name: len(predictor.demos) for name, predictor in compiled.program.named_predictors()}
    listed = ", ".join(f"{name} {n}" for name, n in demos.items() if n) or "none"
    n_calls, n_paid = watch.budget.n_calls, lms.compiling.answer.meter.paid_calls
    spent = f"{n_calls} LM calls" + (f", {n_paid} of them made now" if n_paid < n_calls else "")
    note(f"demos: {listed}; {spent}" + (" (budget reached, best so far)" if compiled.stopped_by else ""))
    if compiled.stopped_by:
        note(f"{compiled.stopped_by}; repeat the command with a higher limit to go on from here")
    if render_prompts(compiled.program) == render_prompts(seed_program):
        note("nothing that was tried was good enough to be kept: the compiled program equals the seed")
