"""Half-done work as a value: all that the next step depends on, beside parameters and conditioning."""

from dataclasses import dataclass

import torch
from torch import Tensor

from diffuserve.domain.errors import CheckpointUnusable
from diffuserve.domain.sendable import Sendable
from diffuserve.samplers.base import Memory


@dataclass(frozen=True)
class RequestProgress(Sendable):
    """The state of a request after `step` steps, on the CPU; `generators` are the states of its own.

    `noise` is there if it was drawn for the next step already, and `predicted` within a step in several
    turns: what those that are done have made of their images.
    """

    step: int
    latents: Tensor
    memory: Memory = ()
    guides: tuple[Tensor, ...] = ()
    noise: Tensor | None = None
    generators: tuple[Tensor, ...] = ()
    predicted: tuple[Tensor, ...] = ()

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors of numbers that steps compute with."""
        noise = () if self.noise is None else (self.noise,)
        return (self.latents, *self.memory, *self.guides, *noise)


def saved_generator(saved: Tensor) -> torch.Generator:
    """Return a generator in a saved state. Raise `CheckpointUnusable` if it is none."""
    try:
        return torch.Generator("cpu").set_state(saved.contiguous())
    except (RuntimeError, TypeError) as error:
        raise CheckpointUnusable("a generator's state in the checkpoint is invalid") from error
