"""Half-done work, taken out of a request and put back: memory is given back to the device and taken again.

A waiting request's progress goes to the CPU. Its conditioning is dropped, to be encoded again or found in
the cache. The request resumes exactly where it was, even between two turns of a step: otherwise a large
request that is swapped out for small ones after each turn would never finish a step.
"""

import torch
from torch import Tensor

from diffuserve.engine.requests.phases import RequestPhase
from diffuserve.engine.requests.request_progress import RequestProgress, saved_generator
from diffuserve.engine.requests.request_state import RequestState

_CPU = torch.device("cpu")


def swap_out(state: RequestState, progress: RequestProgress | None) -> None:
    """Have a request that has begun, and waits, give back its memory; it goes on from its `progress`."""
    state.saved, state.run_bytes = progress, 0
    state.move_to(RequestPhase.SWAPPED)
    state.conditioning = state.latents = state.noise = None
    state.memory, state.guides, state.generators = (), (), ()
    if state.saved is not None:  # its next turn is chosen by what it has, wherever that is
        state.predicted = state.saved.predicted


def begin_step(state: RequestState, device: torch.device) -> None:
    """Denoise a request from now on; one that was swapped out comes back, but for its conditioning."""
    if state.phase is RequestPhase.DENOISING:
        return
    state.move_to(RequestPhase.DENOISING)
    if state.saved is not None:
        go_on_from(state, state.saved, device)
        state.saved = None


def progress_of(state: RequestState) -> RequestProgress | None:
    """Return what a request goes on from, here or elsewhere; `None` before its latents are drawn.

    That of a request whose runs have begun is known to its runner alone.
    """
    if state.runs:
        return RequestProgress(state.step, latents=None, predicted=state.predicted, runs=state.runs)
    if state.latents is None:
        return state.saved
    return RequestProgress(
        step=state.step,
        latents=state.latents.to(_CPU),
        memory=_on(state.memory, _CPU),
        guides=_on(state.guides, _CPU),
        noise=None if state.noise is None else state.noise.to(_CPU),
        generators=tuple(generator.get_state() for generator in state.generators),
        predicted=_on(state.predicted, _CPU),
    )


def go_on_from(state: RequestState, progress: RequestProgress, device: torch.device) -> None:
    """Put a request without latents where the progress is."""
    state.step, state.runs = progress.step, progress.runs
    state.latents = None if progress.latents is None else progress.latents.to(device)
    state.memory, state.guides = _on(progress.memory, device), _on(progress.guides, device)
    state.noise = None if progress.noise is None else progress.noise.to(device)
    state.generators = [saved_generator(saved) for saved in progress.generators]
    state.predicted = _on(progress.predicted, device)


def _on(tensors: tuple[Tensor, ...], device: torch.device) -> tuple[Tensor, ...]:
    return tuple(tensor.to(device) for tensor in tensors)
