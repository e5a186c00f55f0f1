"""Kinds of jobs: what a request of each may say, and which models can do it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from diffuserve.domain.errors import InvalidParams, ModelNotCapable
from diffuserve.domain.jobs.job import AUDIO_GENERATE, IMAGE_GENERATE, VIDEO_GENERATE
from diffuserve.domain.models.abilities import ModelAbilities
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams

_FOR_CLIPS = f'is for clips; leave it out, or ask for the kind "{VIDEO_GENERATE}"'


@dataclass(frozen=True)
class JobKind:
    """What jobs of a kind make, in words, and which models do."""

    made: str
    is_made_by: Callable[[ModelAbilities], bool]


KINDS: Mapping[str, JobKind] = {
    IMAGE_GENERATE: JobKind("images", lambda spec: not spec.is_audio),
    VIDEO_GENERATE: JobKind("clips", lambda spec: spec.is_video),
    AUDIO_GENERATE: JobKind("sounds", lambda spec: spec.is_audio),
}


def own_kind(spec: ModelSpec) -> str:
    """Return the kind of what a model makes by default."""
    if spec.is_audio:
        return AUDIO_GENERATE
    return VIDEO_GENERATE if spec.num_frames > 1 else IMAGE_GENERATE


def ability(spec: ModelSpec) -> str:
    """Return what a model makes, as the words of an error."""
    if spec.is_audio:
        return f"{spec.name} makes sounds"
    return f"{spec.name} generates {'clips' if spec.is_video else 'single images'}"


def check_makes(spec: ModelSpec, kind: str, others: Collection[str]) -> None:
    """Raise `ModelNotCapable` unless the model makes what is asked for; `others` are those that do."""
    wanted = KINDS[kind]
    if wanted.is_made_by(spec):
        return
    made = wanted.made
    remedy = f"{made} are made by {', '.join(sorted(others))}" if others else f"no model here makes {made}"
    if spec.is_audio:
        remedy = f'ask for the kind "{AUDIO_GENERATE}"; {remedy}'
    raise ModelNotCapable("kind", kind, f"{ability(spec)}; {remedy}")


def with_length(kind: str, spec: ModelSpec, params: GenerationParams) -> GenerationParams:
    """Return the parameters of a request of this kind with the number of its frames, if it has any.

    A clip has `num_frames`, or else the number nearest to its `seconds`, or else the model's default. Raise
    `InvalidParams` if the fields do not fit the kind, and `ModelNotCapable` if the model cannot do it.
    """
    if kind == AUDIO_GENERATE:
        _check_leaves_out(params, ("num_frames", *params.clip_values), _FOR_CLIPS)
        return params
    if kind == IMAGE_GENERATE:
        _check_image(params)
        return replace(params, num_frames=1)
    _check_clip(spec, params)
    if params.seconds is not None:
        return replace(params, num_frames=spec.clip_frames(params.seconds, params.fps), seconds=None)
    return replace(params, num_frames=params.num_frames or max(spec.num_frames, spec.shortest_clip))


def _check_image(params: GenerationParams) -> None:
    if params.num_frames not in (None, 1):
        remedy = f'an image has one frame; ask for the kind "{VIDEO_GENERATE}" for a clip'
        raise InvalidParams("num_frames", params.num_frames, remedy)
    _check_leaves_out(params, ("seconds", *params.clip_values), _FOR_CLIPS)


def _check_clip(spec: ModelSpec, params: GenerationParams) -> None:
    if params.seconds is not None and params.num_frames is not None:
        raise InvalidParams("seconds", params.seconds, "says the same as num_frames; give one of them")
    if params.mask is not None:
        raise InvalidParams("mask", "an image", "is for images; a clip takes its first frame as image")
    if params.num_frames == 1:
        remedy = f'is an image; give at least {spec.shortest_clip}, or ask for the kind "{IMAGE_GENERATE}"'
        raise InvalidParams("num_frames", 1, remedy)


def _check_leaves_out(params: GenerationParams, names: Sequence[str], remedy: str) -> None:
    for name in names:
        value = getattr(params, name)
        if value is not None:
            raise InvalidParams(name, value, remedy)
