"""What a run of a pipeline goes on from, in place of the engine's latents."""

from dataclasses import dataclass

from torch import Tensor

from diffuserve.domain.sendable import Sendable


@dataclass(frozen=True)
class RunProgress(Sendable):
    """One image's run after a step of each of its schedulers, in the order of their first steps.

    `steps` counts those of each scheduler, `kept` has what the last one returned and left in it, and
    `generator` the state of the image's generator after it. A run without a step has nothing of these.
    All is on the CPU.
    """

    steps: tuple[int, ...] = ()
    kept: tuple[tuple[Tensor, ...], ...] = ()
    generator: Tensor | None = None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors of numbers that steps compute with."""
        return tuple(tensor for kept in self.kept for tensor in kept)
