"""The plan by which the ranks of a group share a request and a model."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from diffuserve.domain.errors import InvalidParams

_PART = re.compile(r"(cfg|tensor|sequence)=([1-9]\d{0,3})")


@dataclass(frozen=True)
class ParallelPlan:
    """`cfg` groups of `sequence` times `tensor` ranks, which stand in rows of `tensor` neighbors.

    The ranks of a row share the weights of every layer (Megatron); the rows of a group share the tokens of
    every sequence (DeepSpeed-Ulysses); the groups share the passes of a step, such as the two of
    classifier-free guidance.
    """

    sequence: int = 1
    tensor: int = 1
    cfg: int = 1

    def __str__(self) -> str:
        sizes = {"cfg": self.cfg, "tensor": self.tensor, "sequence": self.sequence}
        return ",".join(f"{name}={size}" for name, size in sizes.items() if size > 1) or "sequence=1"

    @property
    def num_ranks(self) -> int:
        return self.cfg * self.group_size

    @property
    def group_size(self) -> int:
        """The ranks that run a pass together."""
        return self.sequence * self.tensor

    @property
    def is_sharded(self) -> bool:
        """Return whether each rank has a part of the weights alone."""
        return self.tensor > 1

    @classmethod
    def parse(cls, text: str) -> "ParallelPlan":
        """Read a plan such as `sequence=4` or `cfg=2,tensor=2`. Raise `InvalidParams` for others."""
        matches = [_PART.fullmatch(part.strip()) for part in text.split(",")]
        sizes = {match[1]: int(match[2]) for match in matches if match is not None}
        if len(sizes) < len(matches):
            raise InvalidParams(
                "parallel",
                text,
                "must be sequence=N, tensor=N, cfg=N or several of them, for example sequence=4 or "
                "tensor=2,sequence=2",
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
    """Raise `InvalidParams` if the ranks of a pass cannot share `number` of what `name` says evenly."""
    product = "tensor times sequence" if plan.is_sharded else "sequence"
    _check_even(plan, name, number, plan.group_size, product)


def encoder_sharing(plan: ParallelPlan, shared: Mapping[str, int]) -> int:
    """Return how many ranks share a text encoder, which has so many of each thing that they share.

    Those are all ranks if they can share it evenly, otherwise the ones that share the denoiser's weights.
    Raise `InvalidParams` if these cannot either.
    """
    if all(number % plan.num_ranks == 0 for number in shared.values()):
        return plan.num_ranks
    for name, number in shared.items():
        _check_even(plan, name, number, plan.tensor, "tensor")
    return plan.tensor


def check_passes(plan: ParallelPlan, passes: int, kind: str) -> None:
    """Raise `InvalidParams` if the groups have no more than `passes` in a step of a model of a `kind`."""
    if plan.cfg <= passes:
        return
    if passes == 1:
        reason = f"steps of {kind} have no passes for cfg to divide; give sequence={plan.num_ranks}"
    else:
        reason = f"a guided step of {kind} has {passes} passes; cfg may be up to {passes}"
    raise InvalidParams("parallel", str(plan), reason)


def _check_even(plan: ParallelPlan, name: str, number: int, num_ranks: int, sizes: str) -> None:
    if number % num_ranks:
        fitting = ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)
        raise InvalidParams(
            "parallel",
            str(plan),
            f"the model has {number} {name}, which {num_ranks} ranks cannot share evenly; "
            f"{sizes} may be {fitting}",
        )
