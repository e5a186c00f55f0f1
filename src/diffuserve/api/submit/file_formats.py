"""Formats of the files of jobs, by the kind of the job."""

from collections.abc import Sequence
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.jobs.job import VIDEO_GENERATE
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.media.video_file import DEFAULT_VIDEO_FORMAT, VIDEO_FORMATS, check_clip

ImageFormat = Literal["png", "webp", "jpeg"]
IMAGE_FORMATS: Sequence[str] = get_args(ImageFormat)
_FORMATS = tuple(dict.fromkeys((*IMAGE_FORMATS, *VIDEO_FORMATS)))


def _check_known(name: str) -> str:
    if name not in _FORMATS:
        raise ValueError(f"must be one of {', '.join(_FORMATS)}")
    return name


FileFormat = Annotated[str, AfterValidator(_check_known), Field(json_schema_extra={"enum": list(_FORMATS)})]
FILE_FORMAT = Field(
    default=None,
    description=f"Of images {', '.join(IMAGE_FORMATS)}, by default {IMAGE_FORMATS[0]}; of clips "
    f"{', '.join(VIDEO_FORMATS)}, by default {DEFAULT_VIDEO_FORMAT}.",
)


def file_format(kind: str, asked: str | None, params: GenerationParams) -> str:
    """Return the format of a job's files: the requested one, or the default of its kind.

    Raise `InvalidParams` for a format of another kind, or one that cannot hold the clip.
    """
    if kind != VIDEO_GENERATE:
        return check_format_fits(kind, asked or IMAGE_FORMATS[0])
    chosen = check_format_fits(kind, asked or DEFAULT_VIDEO_FORMAT)
    check_clip(chosen, params.width or 0, params.height or 0, params.num_frames or 1, params.fps or 1)
    return chosen


def check_format_fits(kind: str, output_format: str) -> str:
    """Return the format. Raise `InvalidParams` if files of jobs of this kind cannot have it."""
    formats = VIDEO_FORMATS if kind == VIDEO_GENERATE else IMAGE_FORMATS
    if output_format not in formats:
        remedy = f"is no format of {kind}; give one of {', '.join(formats)}"
        raise InvalidParams("output_format", output_format, remedy)
    return output_format
