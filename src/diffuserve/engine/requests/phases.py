"""The phases of a request inside the engine, and the moves from one to another."""

from collections.abc import Mapping
from enum import StrEnum


class RequestPhase(StrEnum):
    """The place of a request in the engine.

    It is `WAITING` until it is chosen for its first step here, `DENOISING` from then on, and `SWAPPED` while
    it has given its memory back to the device. After its last step it is `DECODING`; one that ran out of
    memory beside others in that waits for its `RETRY`, until none is decoded. What was returned to the caller
    has `ENDED`.
    """

    WAITING = "waiting"
    DENOISING = "denoising"
    SWAPPED = "swapped"
    DECODING = "decoding"
    RETRY = "retry"
    ENDED = "ended"


MOVES: Mapping[RequestPhase, frozenset[RequestPhase]] = {
    # It comes denoised and is only decoded, or its first latents were drawn ahead and are swapped out.
    RequestPhase.WAITING: frozenset(
        {RequestPhase.DENOISING, RequestPhase.SWAPPED, RequestPhase.DECODING, RequestPhase.ENDED}
    ),
    RequestPhase.DENOISING: frozenset({RequestPhase.SWAPPED, RequestPhase.DECODING, RequestPhase.ENDED}),
    RequestPhase.SWAPPED: frozenset({RequestPhase.DENOISING, RequestPhase.ENDED}),
    RequestPhase.DECODING: frozenset({RequestPhase.RETRY, RequestPhase.ENDED}),
    RequestPhase.RETRY: frozenset({RequestPhase.DECODING, RequestPhase.ENDED}),
    RequestPhase.ENDED: frozenset(),
}
"""The phases that may follow each phase. A request can be aborted, or fail, in every one."""
