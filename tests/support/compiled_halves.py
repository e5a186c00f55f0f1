"""Halves of blocks as the compiler gets them, run without it."""

from torch import Tensor

from diffuserve.models.compiled.halves import BlockHalf, Compiled, export_half


def exported(half: BlockHalf) -> Compiled:
    """Return what is compiled of a half: its exported graph."""
    module = export_half(half).module()

    def run(weights: dict[str, Tensor], *tensors: Tensor) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = module(weights, *tensors)
        return found

    return run


def decibels(found: Tensor, expected: Tensor) -> float:
    """Return the signal-to-noise ratio of a result, 200 where it is exact."""
    error = (found.float() - expected.float()).square().mean() / expected.float().square().mean()
    return float(-10 * error.clamp(min=1e-20).log10())
