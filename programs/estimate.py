"""What a compile will cost: how often an optimizer runs the program, times what a run was measured to cost."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

_CANDIDATES = {"light": 6, "medium": 12, "heavy": 18}  # as in MIPROv2
_VAL_CASES = {"light": 100, "medium": 300, "heavy": 1000}  # what MIPROv2 keeps of the validation cases
_MINIBATCH = 35
_MINIBATCHES_ABOVE = 50  # validation cases
_FULL_EVERY = 5
_SIMBA_BATCH = 16
_WRITING_COSTS = 3  # a call that writes instructions reads and writes about as much as three others


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be compiled: how large it is, and the size of the run that was asked for."""

    n_train: int
    n_val: int
    n_predictors: int
    max_demos: int = 3
    auto: str = "light"
    n_trials: int | None = None

    @property
    def size(self) -> int:
        """How many candidates or steps."""
        return self.n_trials or _CANDIDATES[self.auto]

    @property
    def n_scored(self) -> int:
        """How many cases a candidate is scored on."""
        return self.n_val or self.n_train


@dataclass(frozen=True, slots=True)
class Plan:
    """How often the program runs while it is compiled.

    `n_seed` and `n_seed_most` runs are of the seed program, `n_runs` of candidates, which carry demos; `n_written`
    calls write instructions. `n_least` runs come before there is anything to keep.
    """

    n_seed: int = 0
    n_seed_most: int = 0
    n_runs: int = 0
    n_written: int = 0
    n_least: int = 0

    def __add__(self, other: "Plan") -> "Plan":
        """Put one stage after another; what comes first tells when there is something to keep."""
        return Plan(
            self.n_seed + other.n_seed,
            self.n_seed_most + other.n_seed_most,
            self.n_runs + other.n_runs,
            self.n_written + other.n_written,
            self.n_least or other.n_least,
        )


@dataclass(frozen=True, slots=True)
class Cost:
    """The mean cost of a run of the seed program; `seconds` is None if the LM cache answered all that was measured."""

    lm_calls: float
    tokens: float
    cost_usd: float
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Estimate:
    """From … to: without and with demos in the prompts of candidates. `seconds` is None where nothing was timed."""

    lm_calls: tuple[float, float]
    tokens: tuple[float, float]
    cost_usd: tuple[float, float]
    seconds: tuple[float, float] | None

    def say(self) -> str:
        """Say it in one line."""
        parts = [f"{_range(self.lm_calls)} LM calls", f"{_range(self.tokens)} tokens"]
        if self.seconds:
            low, high = (_duration(each) for each in self.seconds)
            parts.append(low if low == high else f"{low} to {high}")
        if self.cost_usd[1]:
            low, high = (f"${each:,.2f}" for each in self.cost_usd)
            parts.append(low if low == high else f"{low} to {high}")
        return " · ".join(parts)


def plan_compile(stages: Sequence[str], task: Task, pass_rate: float) -> Plan | None:
    """Plan all stages of a compile.

    Args:
        stages: Optimizers, in order.
        task: What they compile.
        pass_rate: Share of the train cases whose runs may become demos.

    Returns:
        None if one of the optimizers is not known here.
    """
    if any(stage not in _PLANS for stage in stages):
        return None
    return sum((_PLANS[stage](task, pass_rate) for stage in stages), Plan())


def estimate_compile(plan: Plan, cost: Cost, task: Task, n_threads: int = 1) -> Estimate:
    """Estimate a compile from what a run costs: the most is with all demos in every prompt of a candidate.

    A demo is about as long as the inputs and outputs of a call. On a server that keeps a prompt's prefix, demos cost
    tokens and hardly any time, so the truth is between the two.
    """
    written = plan.n_written / cost.lm_calls * _WRITING_COSTS if cost.lm_calls else 0.0
    low, high = (n + plan.n_runs + written for n in (plan.n_seed, plan.n_seed_most))
    grown = plan.n_seed_most + written + plan.n_runs * (1 + task.max_demos)
    calls = [(n + plan.n_runs) * cost.lm_calls + plan.n_written for n in (plan.n_seed, plan.n_seed_most)]
    return _estimate((calls[0], calls[1]), (low, max(high, grown)), cost, n_threads)


def estimate_runs(n_seed: int, n_compiled: int, cost: Cost, task: Task, n_threads: int = 1) -> Estimate:
    """Estimate runs that are only measured, of the seed program and of programs with demos."""
    n = n_seed + n_compiled
    grown = n_seed + n_compiled * (1 + task.max_demos)
    return _estimate((n * cost.lm_calls, n * cost.lm_calls), (n, grown), cost, n_threads)


def _estimate(calls: tuple[float, float], runs: tuple[float, float], cost: Cost, n_threads: int) -> Estimate:
    low, high = runs
    seconds = None if cost.seconds is None else (low * cost.seconds / n_threads, high * cost.seconds / n_threads)
    return Estimate(
        calls, (low * cost.tokens, high * cost.tokens), (low * cost.cost_usd, high * cost.cost_usd), seconds
    )


def _labeled(task: Task, pass_rate: float) -> Plan:
    return Plan()


def _bootstrap(task: Task, pass_rate: float) -> Plan:
    """Run the seed program until enough runs were right; their prompts are the same in every repeat, so cached."""
    n = min(task.n_train, math.ceil(task.max_demos / pass_rate)) if pass_rate else task.n_train
    return Plan(n_seed=n, n_seed_most=task.n_train, n_least=min(n, math.ceil(1 / pass_rate)) if pass_rate else n)


def _random_search(task: Task, pass_rate: float) -> Plan:
    n_scored = task.n_scored
    return Plan(n_scored, n_scored + task.n_train, (task.size + 1) * n_scored, n_least=n_scored)


def _mipro(task: Task, pass_rate: float) -> Plan:
    n_candidates = min(task.n_trials, 4) if task.n_trials else _CANDIDATES[task.auto]
    n_trials = task.n_trials or _n_trials(task.n_predictors, n_candidates)
    n_scored = task.n_scored if task.n_trials else min(task.n_scored, _VAL_CASES[task.auto])
    if n_scored > _MINIBATCHES_ABOVE:
        n_runs = n_trials * _MINIBATCH + (n_trials // _FULL_EVERY + 1) * n_scored
    else:
        n_runs = n_trials * n_scored
    bootstrap = _bootstrap(task, pass_rate)
    n_summary = math.ceil(task.n_train / 10) + 1  # the proposer looks at ten train cases at a time
    return Plan(
        n_seed=bootstrap.n_seed + n_scored,
        n_seed_most=bootstrap.n_seed_most + n_scored,
        n_runs=n_runs,
        n_written=n_summary + task.n_predictors * n_candidates,
        n_least=bootstrap.n_seed + n_scored,
    )


def _n_trials(n_predictors: int, n_candidates: int) -> int:
    return int(max(2 * 2 * n_predictors * math.log2(n_candidates), 1.5 * n_candidates))


def _copro(task: Task, pass_rate: float) -> Plan:
    breadth, depth = max(2, task.size // 2), 2
    n_runs = depth * breadth * task.n_predictors * task.n_train
    return Plan(n_runs=n_runs, n_written=depth * task.n_predictors, n_least=task.n_train)


def _simba(task: Task, pass_rate: float) -> Plan:
    n_candidates, n_steps = min(task.size, 6), max(1, task.size // 2)
    batch = min(_SIMBA_BATCH, task.n_train)
    n_runs = n_steps * 2 * batch * n_candidates + (n_candidates + 1) * task.n_train
    return Plan(n_runs=n_runs, n_written=n_steps * n_candidates // 2, n_least=batch)


def _gepa(task: Task, pass_rate: float) -> Plan:
    if task.n_trials:
        n_runs = task.n_trials * (task.n_train + task.n_val)
    else:
        n_trials, n_scored = _n_trials(task.n_predictors, task.size), task.n_scored
        n_full = (n_trials + 1) // _FULL_EVERY + 1 + (n_trials < _FULL_EVERY)
        n_runs = n_scored + task.size * 5 + n_trials * _MINIBATCH + n_full * n_scored
    n_written = n_runs // 6  # an instruction is tried on three cases, after the one before it was
    return Plan(n_runs=n_runs, n_written=n_written, n_least=task.n_scored)


def _reanchor(task: Task, pass_rate: float) -> Plan:
    """Run the program once a case; where a decision turns at another threshold, another run follows, as long at most.

    All other runs repeat requests that the LM cache answers.
    """
    return Plan(n_seed=task.n_train, n_seed_most=2 * task.n_train, n_least=task.n_train)


_PLANS: Mapping[str, Callable[[Task, float], Plan]] = {
    "labeled": _labeled,
    "knn": _bootstrap,
    "bootstrap": _bootstrap,
    "random-search": _random_search,
    "mipro": _mipro,
    "copro": _copro,
    "simba": _simba,
    "gepa": _gepa,
    "reanchor": _reanchor,
}


def _range(values: tuple[float, float]) -> str:
    low, high = (_short(value) for value in values)
    return low if low == high else f"{low} to {high}"


def _short(value: float) -> str:
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if value >= unit * 10:
            return f"{value / unit:,.0f}{name}"
    return f"{value:,.0f}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"
