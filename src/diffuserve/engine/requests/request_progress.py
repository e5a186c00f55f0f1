"""Half-done work as a value: all that the next step depends on, beside parameters and conditioning."""

from dataclasses import dataclass

import torch
from torch import Tensor

from diffuserve.domain.errors import CheckpointUnusable
from diffuserve.domain.sendable import Sendable
from diffuserve.models.pipelines.run_progress import RunProgress
from diffuserve.samplers.base import Memory


@dataclass(frozen=True)
class RequestProgress(Sendable):
    """The state of a request after `step` steps, on the CPU; `generators` are the states of its own.

    `noise` is there if it was drawn for the next step already, and `predicted` within a step in several
    turns: what those that are done have made of their images. A request that runs by itself has no latents
    and none of the others, but `runs`, one for each image.
    """

    step: int
    latents: Tensor | None
    memory: Memory = ()
    guides: tuple[Tensor, ...] = ()
    noise: Tensor | None = None
    generators: tuple[Tensor, ...] = ()
    predicted: tuple[Tensor, ...] = ()
    runs: tuple[RunProgress, ...] = ()

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors of numbers that steps compute with."""
        given = (tensor for tensor in (self.latents, self.noise) if tensor is not None)
        of_runs = (tensor for run in self.runs for tensor in run.tensors)
        return (*given, *self.memory, *self.guides, *of_runs)


def saved_generator(saved: Tensor) -> torch.Generator:
    """Return a generator in a saved state. Raise `CheckpointUnusable` if it is none."""
    try:
        return torch.Generator("cpu").set_state(saved.contiguous())
    except (RuntimeError, TypeError) as error:
        raise CheckpointUnusable("a generator's state in the checkpoint is invalid") from error
