"""One request decoded by all ranks, each a slab of every image, on the decoder's thread of each."""

from diffuserve.engine.model_runner import finite
from diffuserve.engine.requests.request_state import RequestState
from diffuserve.models.frames import Media, media_of
from diffuserve.models.pipelines.base import PackedPipeline
from diffuserve.parallel.ranks import GroupBroken, Ranks

EVERY_RANK = -1
"""The number that stands for all ranks where a command says which one decodes a request."""


def decode_in_slabs(
    pipeline: PackedPipeline, ranks: Ranks, state: RequestState | None
) -> list[Media] | Exception:
    """Return a request's images, or the exception of this rank, or that another one cannot decode it.

    Ranks agree before their collectives. A rank without a `state` has given up an aborted request. Raise
    `GroupBroken` for a failure among collectives, as the others wait in theirs.
    """
    error = _problem(state)
    if not ranks.images.all_true(error is None) or state is None:
        return error or RuntimeError("another rank cannot decode the request")
    try:
        [images] = pipeline.decode_in_slabs([state.turn_latents], [state.turn_params])
    except Exception as failure:
        raise GroupBroken(
            f"rank {ranks.index} failed among the collectives of a decode: {failure}"
        ) from failure
    return [media_of(each) for each in images]


def _problem(state: RequestState | None) -> Exception | None:
    """Return why a request is not decoded here."""
    if state is None:
        return RuntimeError("aborted")
    try:
        finite(state.turn_latents)
    except Exception as error:
        return error
    return None
