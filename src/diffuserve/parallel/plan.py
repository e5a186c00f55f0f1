"""The plan by which the ranks of a group share a request."""

import re
from dataclasses import dataclass

from diffuserve.domain.errors import InvalidParams

_PLAN = re.compile(r"sequence=([1-9]\d{0,3})")


@dataclass(frozen=True)
class ParallelPlan:
    """`sequence` ranks share the tokens of every sequence (DeepSpeed-Ulysses)."""

    sequence: int = 1

    def __str__(self) -> str:
        return f"sequence={self.sequence}"

    @classmethod
    def parse(cls, text: str) -> "ParallelPlan":
        """Read a plan such as `sequence=4`. Raise `InvalidParams` for anything else."""
        match = _PLAN.fullmatch(text.strip())
        if match is None:
            raise InvalidParams("parallel", text, "must be sequence=N, for example sequence=4")
        return cls(sequence=int(match[1]))


def check_group(plan: ParallelPlan, num_ranks: int) -> None:
    """Raise `InvalidParams` if the group does not fit the plan."""
    if plan.sequence != num_ranks:
        raise InvalidParams(
            "parallel", str(plan), f"needs {plan.sequence} ranks, but the group has {num_ranks}"
        )


def check_plan(plan: ParallelPlan, num_ranks: int, num_heads: int) -> None:
    """Raise `InvalidParams` if the group or the model's `num_heads` attention heads do not fit the plan."""
    check_group(plan, num_ranks)
    if num_heads % plan.sequence:
        fitting = [n for n in range(1, num_heads + 1) if num_heads % n == 0]
        raise InvalidParams(
            "parallel",
            str(plan),
            f"the model has {num_heads} attention heads, which {plan.sequence} ranks cannot share evenly; "
            f"sequence may be {', '.join(map(str, fitting))}",
        )
