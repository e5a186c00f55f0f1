"""How the ranks of a group share one request's work."""

import re
from dataclasses import dataclass

from diffuserve.domain.errors import InvalidParams

_PART = re.compile(r"(sequence|cfg)=(\d{1,4})")


@dataclass(frozen=True)
class ParallelPlan:
    """`sequence` ranks share every sequence's tokens; `cfg` groups of those share guidance's passes."""

    sequence: int = 1
    cfg: int = 1

    @property
    def num_ranks(self) -> int:
        return self.sequence * self.cfg

    def __str__(self) -> str:
        return f"sequence={self.sequence}" + (f",cfg={self.cfg}" if self.cfg > 1 else "")

    @classmethod
    def parse(cls, text: str) -> "ParallelPlan":
        """From `sequence=4`, `cfg=2` or `sequence=2,cfg=2`. Raises `InvalidParams`."""
        found: dict[str, int] = {}
        for part in text.split(","):
            match = _PART.fullmatch(part.strip())
            if match is None or int(match[2]) < 1 or match[1] in found:
                raise InvalidParams("parallel", text, "give sequence=N, cfg=N, or both with a comma")
            found[match[1]] = int(match[2])
        if found.get("cfg", 1) > 2:
            raise InvalidParams("parallel", text, "guidance has two passes, so cfg is 1 or 2")
        return cls(**found)


def default_plan(num_ranks: int, has_passes: bool) -> ParallelPlan:
    """Guidance's two passes never wait for each other inside a step, so they are split first."""
    if has_passes and num_ranks % 2 == 0:
        return ParallelPlan(sequence=num_ranks // 2, cfg=2)
    return ParallelPlan(sequence=num_ranks)


def check_plan(plan: ParallelPlan, num_ranks: int, num_heads: int | None, has_passes: bool) -> None:
    """Raises `InvalidParams` for a plan that this group or this model cannot follow.

    `has_passes`: guidance takes two passes of the model; `num_heads` of its attention, where it has one.
    """
    if plan.num_ranks != num_ranks:
        raise InvalidParams("parallel", str(plan), f"makes {plan.num_ranks} ranks, and there are {num_ranks}")
    if plan.cfg > 1 and not has_passes:
        raise InvalidParams("parallel", str(plan), "this model draws in one pass; give sequence= alone")
    if num_heads is not None and num_heads % plan.sequence:
        fitting = [n for n in range(1, num_heads + 1) if num_heads % n == 0]
        raise InvalidParams(
            "parallel",
            str(plan),
            f"the model has {num_heads} attention heads, which {plan.sequence} ranks cannot share evenly; "
            f"sequence may be {', '.join(map(str, fitting))}",
        )
