"""Memory of requests that wait: given back to the device, and taken again.

What a waiting request has done so far goes to the CPU, and its conditioning is dropped: that is encoded
again, or found in the cache. So it comes back where it was, also between two turns of a step: a large request
that gave back its memory to small ones after each turn would otherwise never end a step.
"""

import torch

from diffuserve.engine.checkpoint import RequestProgress
from diffuserve.engine.request_state import RequestState


def swap_out(state: RequestState) -> None:
    """Have a request that has begun, and waits, give back its memory."""
    state.swapped_out = RequestProgress.of(state)
    state.conditioning = state.latents = state.noise = None
    state.memory, state.guides, state.generators = (), (), ()
    if state.swapped_out is not None:  # its next turn is chosen by what it has, wherever that is
        state.predicted = state.swapped_out.predicted


def swap_in(state: RequestState, device: torch.device) -> None:
    """Put a request that was swapped out where it was, but for its conditioning."""
    if state.swapped_out is not None:
        state.swapped_out.enter(state, device)
        state.swapped_out = None
