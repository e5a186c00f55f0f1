"""The plan by which the ranks of a group share a request and a model."""

import re
from dataclasses import dataclass

from diffuserve.domain.errors import InvalidParams

_PART = re.compile(r"(tensor|sequence)=([1-9]\d{0,3})")


@dataclass(frozen=True)
class ParallelPlan:
    """`sequence` times `tensor` ranks, which stand in rows of `tensor` neighbors.

    The ranks of a row share the weights of every layer (Megatron); the rows share the tokens of every
    sequence (DeepSpeed-Ulysses).
    """

    sequence: int = 1
    tensor: int = 1

    def __str__(self) -> str:
        sizes = {"tensor": self.tensor, "sequence": self.sequence}
        return ",".join(f"{name}={size}" for name, size in sizes.items() if size > 1) or "sequence=1"

    @property
    def num_ranks(self) -> int:
        return self.sequence * self.tensor

    @property
    def is_sharded(self) -> bool:
        """Return whether each rank has a part of the weights alone."""
        return self.tensor > 1

    @classmethod
    def parse(cls, text: str) -> "ParallelPlan":
        """Read a plan such as `sequence=4` or `tensor=2,sequence=2`. Raise `InvalidParams` for others."""
        matches = [_PART.fullmatch(part.strip()) for part in text.split(",")]
        sizes = {match[1]: int(match[2]) for match in matches if match is not None}
        if len(sizes) < len(matches):
            raise InvalidParams(
                "parallel",
                text,
                "must be sequence=N, tensor=N or both, for example sequence=4 or tensor=2,sequence=2",
            )
        return cls(**sizes)


def check_group(plan: ParallelPlan, num_ranks: int) -> None:
    """Raise `InvalidParams` if the group does not fit the plan."""
    if plan.num_ranks != num_ranks:
        raise InvalidParams(
            "parallel",
            str(plan),
            f"needs {plan.num_ranks} ranks, one for each GPU, but there are {num_ranks}",
        )


def check_shared(plan: ParallelPlan, name: str, number: int) -> None:
    """Raise `InvalidParams` if the ranks cannot share `number` of what `name` says evenly."""
    if number % plan.num_ranks:
        fitting = ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)
        raise InvalidParams(
            "parallel",
            str(plan),
            f"the model has {number} {name}, which {plan.num_ranks} ranks cannot share evenly; "
            f"{'tensor times sequence' if plan.is_sharded else 'sequence'} may be {fitting}",
        )
