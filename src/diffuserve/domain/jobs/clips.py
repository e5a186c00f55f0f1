"""The number of frames of a request by its kind: one for an image, several for a clip."""

from collections.abc import Collection
from dataclasses import replace

from diffuserve.domain.errors import InvalidParams, ModelNotCapable
from diffuserve.domain.jobs.job import VIDEO_GENERATE
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import SECONDS, GenerationParams

_FOR_CLIPS = f'is for clips; leave it out, or ask for the kind "{VIDEO_GENERATE}"'


def with_frames(
    kind: str, spec: ModelSpec, params: GenerationParams, seconds: float | None = None
) -> GenerationParams:
    """Return the parameters of a request of this kind with the number of its frames.

    A clip has `num_frames`, or else the number nearest to `seconds`, or else the model's default. Raise
    `InvalidParams` if the fields do not fit the kind, and `ModelNotCapable` if the model cannot do it.
    """
    if kind != VIDEO_GENERATE:
        _check_image(params, seconds)
        return replace(params, num_frames=1)
    _check_clip(params, seconds)
    if seconds is not None:
        return replace(params, num_frames=_frames_in(spec, seconds, params.fps))
    if params.num_frames == 1:
        remedy = f'is an image; give at least {shortest_clip(spec)}, or ask for the kind "image.generate"'
        raise InvalidParams("num_frames", 1, remedy)
    return replace(params, num_frames=params.num_frames or max(spec.num_frames, shortest_clip(spec)))


def check_makes_clips(spec: ModelSpec, others: Collection[str]) -> None:
    """Raise `ModelNotCapable` unless the model makes clips; `others` are those that do."""
    if not spec.is_video:
        remedy = f"clips are made by {', '.join(sorted(others))}" if others else "no model here makes clips"
        raise ModelNotCapable("kind", VIDEO_GENERATE, f"{spec.name} generates single images; {remedy}")


def shortest_clip(spec: ModelSpec) -> int:
    """Return the fewest frames of a clip of this model."""
    return 1 + spec.temporal_stride


def longest_clip(spec: ModelSpec) -> int:
    """Return the most frames of a clip of this model."""
    return (spec.max_frames - 1) // spec.temporal_stride * spec.temporal_stride + 1


def _check_image(params: GenerationParams, seconds: float | None) -> None:
    if params.num_frames not in (None, 1):
        remedy = f'an image has one frame; ask for the kind "{VIDEO_GENERATE}" for a clip'
        raise InvalidParams("num_frames", params.num_frames, remedy)
    if seconds is not None:
        raise InvalidParams("seconds", seconds, _FOR_CLIPS)
    for field, value in params.clip_values.items():
        raise InvalidParams(field, value, _FOR_CLIPS)


def _check_clip(params: GenerationParams, seconds: float | None) -> None:
    if seconds is not None and params.num_frames is not None:
        raise InvalidParams("seconds", seconds, "says the same as num_frames; give one of them")
    SECONDS.check(seconds)
    if params.mask is not None:
        raise InvalidParams("mask", "an image", "is for images; a clip takes its first frame as image")


def _frames_in(spec: ModelSpec, seconds: float, fps: int | None) -> int:
    """Return the frames of the clip whose length is nearest. Raise `InvalidParams` for too long ones."""
    rate, longest = fps or spec.fps, longest_clip(spec)
    # The longest clip is the nearest for durations that exceed it by less than half a stride.
    if seconds * rate > longest + spec.temporal_stride / 2:
        remedy = f"{spec.name} generates at most {longest} frames, {longest / rate:.3g} at {rate} a second"
        raise InvalidParams("seconds", seconds, remedy)
    return min(max(spec.frames_in(seconds, fps), shortest_clip(spec)), longest)
