"""The LMs of a compile: those of the program, a teacher that runs it for demos, a proposer that writes instructions."""

from dataclasses import dataclass

from programs.lms import MeteredLM, Roles, check, make_lm


@dataclass(frozen=True, slots=True)
class CompileLMs:
    """The LMs of a compile. `compiling` are the roles with a meter of their own, which teacher and proposer share."""

    roles: Roles
    compiling: Roles
    teacher: MeteredLM | None
    proposer: MeteredLM | None

    @property
    def all(self) -> list[MeteredLM]:
        """Every LM that is called."""
        return [lm for lm in (self.roles.decision, self.roles.answer, self.teacher, self.proposer) if lm]

    def cost_usd(self) -> float:
        """What compiling has cost this process."""
        return self.compiling.answer.meter.usage.cost_usd


def make_compile_lms(
    roles: Roles, teacher: str | None = None, proposer: str | None = None, api_base: str | None = None
) -> CompileLMs:
    """Build the LMs of a compile from flags and check that each answers; comparisons are on a meter apart.

    Raises:
        LMSpecError: Not an LM.
        LMError: One does not answer.
    """
    others = [make_lm(spec, api_base) if spec else None for spec in (teacher, proposer)]
    check(*(lm for lm in (roles.decision, roles.answer, *others) if lm))
    compiling = roles.with_own_meter()
    metered = [lm.copy(meter=compiling.answer.meter) if lm else None for lm in others]
    return CompileLMs(roles, compiling, *metered)
