"""What a pipeline draws without being given a generator follows from its request's seed alone.

A few classes do: SD3's ControlNets sample the latents of their control image from the global generator.
"""

from collections.abc import Sequence

import torch


class OwnRandomness:
    """The states that torch's global generators have while a run's own lines run."""

    def __init__(self, seed: int) -> None:
        self._states = [_seeded(generator, seed) for generator in _global_generators()]

    def swap(self) -> None:
        """Put the run's states in, or what they replaced back, before and after its own lines."""
        for index, generator in enumerate(_global_generators()[: len(self._states)]):
            state = generator.get_state()
            generator.set_state(self._states[index])
            self._states[index] = state


def _seeded(generator: torch.Generator, seed: int) -> torch.Tensor:
    return torch.Generator(generator.device).manual_seed(seed).get_state()


def _global_generators() -> Sequence[torch.Generator]:
    if not torch.cuda.is_initialized():
        return [torch.default_generator]
    return [torch.default_generator, torch.cuda.default_generators[torch.cuda.current_device()]]
