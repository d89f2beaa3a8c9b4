"""DSPy's optimizers behind one call, one after another if asked; each starts from the demos the program has."""

import contextlib
import copy
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import dspy

from programs.decisions import fit_thresholds
from programs.journal import Trial
from programs.meter import BudgetExceeded
from programs.progress import note
from programs.rag import NaiveRAG
from programs.settings import SCORES_ON_VALSET, Settings
from programs.step_demos import choose_demos
from programs.trials import Watch

Demos = Mapping[str, Sequence[dspy.Example]]

_MAX_ERRORS = 10  # cases that an LM refuses (too long, say); one that is down ends the compile earlier
_INSTRUCTION_TOKENS = 800
_SIMBA_BATCH = 16
_MIPRO_VALSET = {"light": 100, "medium": 300, "heavy": 1000}
_MIPRO_MINIBATCH_ABOVE = 50


class Metric(Protocol):
    """Scores a run 0..1; while demos are collected (a trace is given), tells whether it may become one."""

    def __call__(self, example: dspy.Example, prediction: Any, trace: Any = None) -> float | bool: ...  # noqa: D102


class _MetricFailed(BaseException):
    """A metric raised. Not an `Exception`: DSPy would count the run as a score of 0 and go on."""


Feedback = Callable[[dspy.Example, Any, str], str]
"""`(example, prediction, predictor)` → what that predictor did well or badly in a run, for an LM that rewrites it."""


@dataclass(frozen=True, slots=True)
class Job:
    """What every optimizer is given beside the program.

    Attributes:
        teacher: Runs the program while demos are collected; the bound LM if there is none.
        proposer: Writes instructions; the bound LM if there is none.
        step_demos: A pool of demos for each predictor, beyond those the program has.
        feedback: What gepa tells the LM that rewrites a predictor.
        embed: Texts to vectors, for knn.
        watch: Sees the trials.
    """

    metric: Metric
    trainset: list[dspy.Example]
    valset: list[dspy.Example]
    settings: Settings
    teacher: dspy.LM | None = None
    proposer: dspy.LM | None = None
    step_demos: Demos = field(default_factory=dict)
    feedback: Feedback = lambda example, prediction, predictor: ""
    embed: Callable[[list[str]], Any] | None = None
    watch: Watch = field(default_factory=Watch)

    @property
    def teacher_settings(self) -> dict[str, Any]:
        """What is bound while demos are collected."""
        return {"lm": self.teacher, "decision_lm": self.teacher} if self.teacher else {}

    @property
    def prompt_model(self) -> dspy.LM:
        """The LM that writes instructions: those are longer than answers, where answers are bounded at all."""
        lm = self.proposer or dspy.settings.lm
        return lm.copy(max_tokens=_INSTRUCTION_TOKENS) if lm.kwargs.get("max_tokens") else lm


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled program; if a budget ended the compile early, it is the best so far, and `stopped_by` says which.

    `trials` are the programs that were scored on the way, in order.
    """

    program: NaiveRAG
    stopped_by: str | None = None
    trials: tuple[Trial, ...] = ()

    @property
    def stopped_at_budget(self) -> bool:
        """Whether a budget ended the compile early."""
        return self.stopped_by is not None


def compile_program(
    program: NaiveRAG,
    metric: Metric,
    trainset: Sequence[dspy.Example],
    valset: Sequence[dspy.Example],
    settings: Settings,
    teacher: dspy.LM | None = None,
    **more: Any,
) -> Compiled:
    """Compile `program` with the LM that is bound, stage by stage.

    Args:
        program: The seed program; it is not changed.
        metric: `(example, prediction, trace)` → 0..1; with a trace, whether a run is good enough to become demos.
        trainset: Demos come from these.
        valset: Candidates are scored on these by the optimizers that take a validation set; the others, and all if it
            is empty, look at the trainset alone.
        settings: How to compile.
        teacher: Runs the program while demos are collected; the bound LM if left out.
        **more: The other fields of `Job`.

    Raises:
        EndpointDown: The LM failed several times in a row.
        LMError: It refused several train cases.
        Exception: Whatever the metric raised.
    """
    job = Job(_strict(metric), list(trainset), list(valset), settings, teacher, **more)
    with (
        contextlib.redirect_stdout(sys.stderr),  # optimizers print; stdout is for results
        dspy.context(callbacks=[*dspy.settings.callbacks, job.watch, job.watch.budget], max_errors=_MAX_ERRORS),
    ):
        for stage in settings.stages:
            try:
                compiled = _run(stage, program, job)
            except _MetricFailed as failed:
                raise failed.__cause__ or failed from None
            program = compiled.program
            if compiled.stopped_at_budget:
                break
    return replace(compiled, trials=tuple(job.watch.trials))


def _strict(metric: Metric) -> Metric:
    """Have an error of the metric end the compile; where there is no prediction, the run failed, and 0 is its score."""

    def score(example: dspy.Example, prediction: Any, trace: Any = None) -> float | bool:
        try:
            return metric(example, prediction, trace)
        except Exception as error:
            if prediction is None:
                raise
            raise _MetricFailed from error

    return score


def _run(stage: str, program: NaiveRAG, job: Job) -> Compiled:
    job.watch.begin(stage, _scored_on(stage, job))
    bootstrapper = _bootstrapper(job, job.settings.max_demos)
    try:
        if stage in ("bootstrap", "knn"):
            return Compiled(_bootstrap(program, job, bootstrapper, _nearest(job) if stage == "knn" else job.trainset))
        return Compiled(_bare(program, _STAGES[stage](program, job)))
    except BudgetExceeded as spent:
        if stage in ("bootstrap", "knn"):
            return Compiled(_merge(program, getattr(bootstrapper, "name2traces", {}), job), str(spent))
        return Compiled(job.watch.best or program.deepcopy(), str(spent))


def _scored_on(stage: str, job: Job) -> list[dspy.Example]:
    return job.valset if job.valset and stage in SCORES_ON_VALSET else job.trainset


def _bare(seed: NaiveRAG, compiled: NaiveRAG) -> NaiveRAG:
    """Take signatures, demos and thresholds over into a copy of the seed; leave what else an optimizer hangs on.

    A module with `_compiled` set would be left out of what is saved.
    """
    program: NaiveRAG = seed.deepcopy()
    for mine, theirs in zip(program.predictors(), compiled.predictors(), strict=True):
        mine.signature, mine.demos, mine.fields = theirs.signature, theirs.demos, copy.deepcopy(theirs.fields)
    return program


def _labeled(program: NaiveRAG, job: Job) -> NaiveRAG:
    """Give every predictor demos from its pool: DSPy's LabeledFewShot, with demos of its own for each predictor.

    A raw gold case would have no passages, and as a demo teach answering from memory.
    """
    return _merge(program, {}, job)


def _bootstrapper(job: Job, max_demos: int) -> dspy.BootstrapFewShot:
    return dspy.BootstrapFewShot(
        metric=job.metric,
        max_bootstrapped_demos=max_demos,
        max_labeled_demos=0,  # as for `_labeled`
        teacher_settings=job.teacher_settings,
    )


def _bootstrap(
    program: NaiveRAG,
    job: Job,
    bootstrapper: dspy.BootstrapFewShot,
    trainset: list[dspy.Example],
    seed: int | None = None,
) -> NaiveRAG:
    """Collect demos from runs that were right, made by the program with the demos it has, and add them to those."""
    compiled = bootstrapper.compile(program.reset_copy(), teacher=program, trainset=trainset)
    return _merge(program, {name: one.demos for name, one in compiled.named_predictors()}, job, seed)


def _merge(program: NaiveRAG, collected: Demos, job: Job, seed: int | None = None) -> NaiveRAG:
    """Copy a program and choose its demos anew: from those just collected, those it has, and the pools."""
    merged: NaiveRAG = program.deepcopy()
    for name, predictor in merged.named_predictors():
        pool = [*collected.get(name, ()), *predictor.demos, *job.step_demos.get(name, ())]
        unlike = [demo for place, demo in enumerate(pool) if demo not in pool[:place]]
        predictor.demos = choose_demos(unlike, job.settings.max_demos, seed)
    return merged


def _nearest(job: Job) -> list[dspy.Example]:
    """Order train cases by how often they are among the nearest of a validation case, and keep those that ever are.

    DSPy's KNNFewShot bootstraps anew for every question it is asked, with the trainset at hand; an export holds fixed
    demos, so here the validation cases stand for the questions to come.
    """
    if job.embed is None:
        raise ValueError("knn needs an embedder")
    knn = dspy.KNN(min(job.settings.max_demos, len(job.trainset)), job.trainset, vectorizer=job.embed)
    votes = dict.fromkeys((example.id for example in job.trainset), 0)
    for example in job.valset or job.trainset:
        for neighbour in knn(**example.inputs()):
            votes[neighbour.id] += 1
    return sorted([one for one in job.trainset if votes[one.id]], key=lambda one: -votes[one.id])


def _random_search(program: NaiveRAG, job: Job) -> NaiveRAG:
    """Score the program as it is, without demos, with demos in order and shuffled: BootstrapFewShotWithRandomSearch.

    Written out, because DSPy's throws away the demos a program has, and keeps nothing when its budget ends.
    """
    seed, scored_on = job.settings.seed_of("random-search"), _scored_on("random-search", job)
    seeds = [program, program.reset_copy()] if any(one.demos for one in program.predictors()) else [program]
    job.watch.begin("random-search", scored_on, n_trials=len(seeds) + 1 + job.settings.size)
    evaluate = dspy.Evaluate(devset=scored_on, metric=job.metric, num_threads=job.settings.n_threads)
    for one in seeds:
        evaluate(one)
    for number in range(-1, job.settings.size):
        rng, shuffled = random.Random(seed * 1000 + number), list(job.trainset)
        size = job.settings.max_demos if number < 0 else rng.randint(1, job.settings.max_demos)
        if number >= 0:
            rng.shuffle(shuffled)
        candidate = _bootstrap(program, job, _bootstrapper(job, size), shuffled, number if number >= 0 else None)
        evaluate(candidate)
    return job.watch.best or program.deepcopy()


class DemoAwareMIPRO(dspy.MIPROv2):
    """MIPROv2 that also tries the demos a program has, and choices from the pools, among its demo sets."""

    def __init__(self, job: Job, **settings: Any) -> None:
        """Take what MIPROv2 takes, and the pools."""
        super().__init__(**settings)
        self._job = job

    def _bootstrap_fewshot_examples(self, program: Any, *args: Any, **kwargs: Any) -> Any:
        candidates = super()._bootstrap_fewshot_examples(program, *args, **kwargs)
        sets = [program, *(_merge(program, {}, self._job, seed) for seed in (None, 0))]
        for one in sets if self._job.step_demos else sets[:1]:
            for place, predictor in enumerate(one.predictors()):
                candidates[place].append(list(predictor.demos))
        return candidates


def _mipro(program: NaiveRAG, job: Job) -> NaiveRAG:
    settings, by_trials = job.settings, job.settings.n_trials is not None
    scored_on, seed = _scored_on("mipro", job), settings.seed_of("mipro")
    optimizer = DemoAwareMIPRO(
        job,
        metric=job.metric,
        prompt_model=job.prompt_model,
        task_model=dspy.settings.lm,
        teacher_settings=job.teacher_settings,
        max_bootstrapped_demos=settings.max_demos,
        max_labeled_demos=0,
        auto=None if by_trials else settings.auto,
        num_candidates=min(settings.n_trials or 1, 4) if by_trials else None,
        num_threads=settings.n_threads,
        seed=seed,
    )
    if not by_trials:  # MIPROv2 would do it, and what it scores on would not be known here
        scored_on = random.Random(seed).sample(scored_on, min(_MIPRO_VALSET[settings.auto], len(scored_on)))
    minibatch = len(scored_on) > _MIPRO_MINIBATCH_ABOVE
    job.watch.begin("mipro", scored_on, settings.n_trials + 1 if settings.n_trials and not minibatch else None)
    best: NaiveRAG = optimizer.compile(
        program,
        trainset=job.trainset,
        valset=scored_on,
        num_trials=settings.n_trials,
        seed=seed,
        minibatch=minibatch,
        program_aware_proposer=False,  # the source of the program would fill a small LM's context
    )
    return best


def _copro(program: NaiveRAG, job: Job) -> NaiveRAG:
    optimizer = dspy.COPRO(
        prompt_model=job.prompt_model, metric=job.metric, breadth=max(2, job.settings.size // 2), depth=2
    )
    how = {"num_threads": job.settings.n_threads, "display_progress": False}
    best: NaiveRAG = optimizer.compile(program, trainset=job.trainset, eval_kwargs=how)
    return best


def _simba(program: NaiveRAG, job: Job) -> NaiveRAG:
    settings, batch = job.settings, min(_SIMBA_BATCH, len(job.trainset))
    job.watch.begin("simba", job.trainset, metric=job.metric, n_runs=batch)  # it scores without dspy.Evaluate
    optimizer = dspy.SIMBA(
        metric=job.metric,
        bsize=batch,
        num_candidates=min(settings.size, 6),
        max_steps=max(1, settings.size // 2),
        max_demos=settings.max_demos,
        prompt_model=job.prompt_model,
        teacher_settings=job.teacher_settings,
        num_threads=settings.n_threads,
    )
    best: NaiveRAG = optimizer.compile(program, trainset=job.trainset, seed=settings.seed_of("simba"))
    return best


def _gepa(program: NaiveRAG, job: Job) -> NaiveRAG:
    settings = job.settings

    def score(gold: Any, pred: Any, trace: Any = None, pred_name: str | None = None, pred_trace: Any = None) -> Any:
        value = float(job.metric(gold, pred))
        if pred_name is None:
            return value
        return dspy.Prediction(score=value, feedback=job.feedback(gold, pred, pred_name) or None)

    optimizer = dspy.GEPA(
        metric=score,
        auto=None if settings.n_trials else settings.auto,
        max_full_evals=settings.n_trials,
        reflection_lm=job.prompt_model,
        component_selector=_next_that_ran,
        num_threads=settings.n_threads,
        seed=settings.seed_of("gepa"),
    )
    best: NaiveRAG = optimizer.compile(program, trainset=job.trainset, valset=_scored_on("gepa", job))
    return best


def _next_that_ran(
    state: Any, trajectories: Sequence[Any], scores: Sequence[float], candidate_id: int, candidate: Mapping[str, str]
) -> list[str]:
    """Take predictors in turn, and skip those that no run of this batch called: there is nothing to reflect on."""
    names, turn = state.list_of_named_predictors, state.named_predictor_id_to_update_next_for_program_candidate
    called = {step[0].signature.instructions for one in trajectories for step in one["trace"]}
    order = [*range(turn[candidate_id], len(names)), *range(turn[candidate_id])]
    chosen = next((place for place in order if candidate[names[place]] in called), order[0])
    turn[candidate_id] = (chosen + 1) % len(names)
    return [names[chosen]]


def _reanchor(program: NaiveRAG, job: Job) -> NaiveRAG:
    """Fit thresholds on the train cases that no demo comes from: on a case that it has seen an LM is too sure."""
    shown = {dict(demo).get("question") for one in program.predictors() for demo in one.demos}
    cases = [example for example in job.trainset if example.question not in shown] or job.trainset
    job.watch.begin("reanchor", cases, metric=job.metric, n_runs=len(cases))  # it scores without dspy.Evaluate
    fitted, fits = fit_thresholds(program, cases, job.metric, job.settings.n_threads)
    for fit in fits:
        note(fit.say())
    return fitted


_STAGES: Mapping[str, Callable[[NaiveRAG, Job], NaiveRAG]] = {
    "labeled": _labeled,
    "random-search": _random_search,
    "mipro": _mipro,
    "copro": _copro,
    "simba": _simba,
    "gepa": _gepa,
    "reanchor": _reanchor,
}
