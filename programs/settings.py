"""How to compile: optimizers by name and in chains, their size and effective seeds, and what they may spend."""

from dataclasses import dataclass
from typing import Literal

OPTIMIZERS = ("labeled", "knn", "bootstrap", "random-search", "mipro", "copro", "simba", "gepa", "reanchor")
SCORES_ON_VALSET = frozenset({"knn", "random-search", "mipro", "gepa"})
_SEEDED = frozenset({"random-search", "mipro", "simba", "gepa"})
_SIZED = frozenset({"random-search", "mipro", "copro", "simba", "gepa"})
_SIZES = {"light": 6, "medium": 12, "heavy": 18}  # candidates, as in MIPROv2
_MIPRO_SEED = 9


class OptimizerNameError(ValueError):
    """Not the name of an optimizer, or of a chain of them."""


def stages_of(optimizer: str) -> tuple[str, ...]:
    """Read the name of an optimizer, or `chain:ONE,ANOTHER`.

    Raises:
        OptimizerNameError: It names none.
    """
    names = tuple(optimizer.removeprefix("chain:").split(",")) if optimizer.startswith("chain:") else (optimizer,)
    if unknown := [name for name in names if name not in OPTIMIZERS]:
        raise OptimizerNameError(f"no optimizer {unknown[0]!r}: expected {', '.join(OPTIMIZERS)} or chain:ONE,ANOTHER")
    return names


@dataclass(frozen=True, slots=True)
class Settings:
    """How to compile.

    `optimizer` is one name or `chain:ONE,ANOTHER`. `auto` sets the size of a run unless `n_trials` does: the trials of
    mipro, the candidates of random-search and copro, the steps of simba, the full evaluations of gepa. `max_demos`
    bounds the demos of a predictor. With `step_demos` every optimizer starts from demos made of gold evidence.
    """

    optimizer: str = "bootstrap"
    max_demos: int = 3
    auto: Literal["light", "medium", "heavy"] = "light"
    n_trials: int | None = None
    seed: int = 0
    n_threads: int = 1
    step_demos: bool = False

    @property
    def stages(self) -> tuple[str, ...]:
        """The optimizers to run, in order."""
        return stages_of(self.optimizer)

    @property
    def label(self) -> str:
        """How tables and runs call it: the optimizers in order, and the size where they have one."""
        size = f"{self.n_trials} trials" if self.n_trials else self.auto
        return " → ".join(self.stages) + (f" {size}" if set(self.stages) & _SIZED else "")

    @property
    def effective_seed(self) -> int | str:
        """The seed that takes effect; of a chain those of its stages, in order."""
        seeds = [self.seed_of(stage) for stage in self.stages]
        return seeds[0] if len(seeds) == 1 else ", ".join(map(str, seeds))

    def seed_of(self, stage: str) -> int:
        """Give the seed that takes effect in one optimizer.

        MIPROv2 reads 0 as 9 (`seed or self.seed`); BootstrapFewShot and ReAnchor always use 0; COPRO and knn take none.
        """
        if stage not in _SEEDED:
            return 0
        return (self.seed or _MIPRO_SEED) if stage == "mipro" else self.seed

    @property
    def size(self) -> int:
        """How many candidates, steps or full evaluations."""
        return self.n_trials or _SIZES[self.auto]

    @property
    def needs_valset(self) -> bool:
        """Whether a stage looks at cases that no demo comes from."""
        return any(stage in SCORES_ON_VALSET for stage in self.stages)

    @property
    def needs_step_demos(self) -> bool:
        """Whether demos are to be made of gold evidence; `labeled` has no others."""
        return self.step_demos or "labeled" in self.stages


@dataclass(frozen=True, slots=True)
class Limits:
    """What a compile may spend; None is no limit."""

    max_lm_calls: int | None = None
    max_cost: float | None = None
    max_minutes: float | None = None
