"""Memory of requests that wait: given back to the device, and taken again.

What a waiting request has done so far goes to the CPU, and its conditioning is dropped: that is encoded
again, or found in the cache. So it comes back where it was, also between two turns of a step: a large request
that gave back its memory to small ones after each turn would otherwise never end a step.
"""

import torch
from torch import Tensor

from diffuserve.engine.request_progress import RequestProgress, restored
from diffuserve.engine.request_state import RequestState

_CPU = torch.device("cpu")


def progress_of(state: RequestState) -> RequestProgress | None:
    """Return the progress of a request; `None` before its latents are drawn."""
    if state.latents is None:
        return state.swapped_out
    return RequestProgress(
        step=state.step,
        latents=state.latents.to(_CPU),
        memory=_on(state.memory, _CPU),
        guides=_on(state.guides, _CPU),
        noise=None if state.noise is None else state.noise.to(_CPU),
        generators=tuple(generator.get_state() for generator in state.generators),
        predicted=_on(state.predicted, _CPU),
    )


def resume(state: RequestState, progress: RequestProgress, device: torch.device) -> None:
    """Put a request that has not begun where another one was, or itself in another engine."""
    state.step = progress.step
    state.latents = progress.latents.to(device)
    state.memory, state.guides = _on(progress.memory, device), _on(progress.guides, device)
    state.noise = None if progress.noise is None else progress.noise.to(device)
    state.generators = [restored(saved) for saved in progress.generators]
    state.predicted = _on(progress.predicted, device)


def swap_out(state: RequestState) -> None:
    """Have a request that has begun, and waits, give back its memory."""
    state.swapped_out = progress_of(state)
    state.conditioning = state.latents = state.noise = None
    state.memory, state.guides, state.generators = (), (), ()
    if state.swapped_out is not None:  # its next turn is chosen by what it has, wherever that is
        state.predicted = state.swapped_out.predicted


def swap_in(state: RequestState, device: torch.device) -> None:
    """Put a request that was swapped out where it was, but for its conditioning."""
    if state.swapped_out is not None:
        resume(state, state.swapped_out, device)
        state.swapped_out = None


def _on(tensors: tuple[Tensor, ...], device: torch.device) -> tuple[Tensor, ...]:
    return tuple(tensor.to(device) for tensor in tensors)
