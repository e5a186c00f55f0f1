"""Formats of the files of jobs, by the kind of the job."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.jobs.job import AUDIO_GENERATE, IMAGE_GENERATE, VIDEO_GENERATE
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.media.file_names import check_keeps_transparency
from diffuserve.media.sound_file import DEFAULT_SOUND_FORMAT, SOUND_FORMATS, check_sound
from diffuserve.media.video_file import DEFAULT_VIDEO_FORMAT, VIDEO_FORMATS, check_clip

ImageFormat = Literal["png", "webp", "jpeg"]
IMAGE_FORMATS: Sequence[str] = get_args(ImageFormat)
_FORMATS_OF: Mapping[str, Sequence[str]] = {
    IMAGE_GENERATE: IMAGE_FORMATS,
    VIDEO_GENERATE: tuple(VIDEO_FORMATS),
    AUDIO_GENERATE: tuple(SOUND_FORMATS),
}
"""Formats of each kind, the default one first."""
_FORMATS = tuple(dict.fromkeys(name for formats in _FORMATS_OF.values() for name in formats))


def _check_known(name: str) -> str:
    if name not in _FORMATS:
        raise ValueError(f"must be one of {', '.join(_FORMATS)}")
    return name


FileFormat = Annotated[str, AfterValidator(_check_known), Field(json_schema_extra={"enum": list(_FORMATS)})]
FILE_FORMAT = Field(
    default=None,
    description=f"Of images {', '.join(IMAGE_FORMATS)}, by default {IMAGE_FORMATS[0]}; of clips "
    f"{', '.join(VIDEO_FORMATS)}, by default {DEFAULT_VIDEO_FORMAT}; of sounds {', '.join(SOUND_FORMATS)}, "
    f"by default {DEFAULT_SOUND_FORMAT}.",
)


def file_format(kind: str, asked: str | None, params: GenerationParams, spec: ModelSpec) -> str:
    """Return the format of a job's files: the requested one, or the default of its kind.

    Raise `InvalidParams` for a format of another kind, or one that cannot hold the clip, sound or layers.
    """
    chosen = check_format_fits(kind, asked or _FORMATS_OF[kind][0])
    _check_quality(kind, chosen, params)
    if kind == VIDEO_GENERATE:
        check_clip(chosen, params.width or 0, params.height or 0, params.num_frames or 1, params.fps or 1)
    elif kind == AUDIO_GENERATE:
        check_sound(chosen, params.seconds or 0, spec.sample_rate)
    elif spec.has_layers:
        check_keeps_transparency("output_format", chosen)
    return chosen


def has_quality(kind: str, output_format: str) -> bool:
    """Return whether files of this format are smaller with a lower `output_quality`."""
    return kind == IMAGE_GENERATE and output_format in ("jpeg", "webp")


def _check_quality(kind: str, output_format: str, params: GenerationParams) -> None:
    if params.output_quality is not None and not has_quality(kind, output_format):
        remedy = f"is for images in jpeg or webp, not for {output_format}; leave it out"
        raise InvalidParams("output_quality", params.output_quality, remedy)


def check_format_fits(kind: str, output_format: str) -> str:
    """Return the format. Raise `InvalidParams` if files of jobs of this kind cannot have it."""
    formats = _FORMATS_OF[kind]
    if output_format not in formats:
        remedy = f"is no format of {kind}; give one of {', '.join(formats)}"
        raise InvalidParams("output_format", output_format, remedy)
    return output_format
