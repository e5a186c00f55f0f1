"""Clips on the command line: what asks for one, and the model that makes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from diffuserve.cli.images.destination import VIDEO_SUFFIXES, Destination
from diffuserve.domain.errors import ModelNotCapable
from diffuserve.domain.jobs.job import IMAGE_GENERATE, VIDEO_GENERATE
from diffuserve.domain.jobs.kinds import own_kind, with_length
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import FIELDS, GenerationParams
from diffuserve.media.file_names import FORMATS
from diffuserve.media.video_file import check_clip

_CLIPS_ALONE = frozenset(VIDEO_SUFFIXES) - frozenset(FORMATS)
_IMAGES_ALONE = frozenset(FORMATS) - frozenset(VIDEO_SUFFIXES)


@dataclass(frozen=True)
class ClipOptions:
    """Options that say how long a clip is; `None` where they were not given."""

    num_frames: int | None = None
    seconds: float | None = None
    fps: int | None = None

    def kind(self, output: Path | None) -> str | None:
        """Return the kind of what is asked for; `None` where neither options nor the file's name tell.

        Raise `typer.BadParameter` for a file that cannot hold it, and `InvalidParams` for a bad length.
        """
        self._check()
        suffix = "" if output is None or output.is_dir() else output.suffix.lower()
        if not self._asks_for_clip:
            if self.num_frames == 1 or suffix in _IMAGES_ALONE:
                return IMAGE_GENERATE
            return VIDEO_GENERATE if suffix in _CLIPS_ALONE else None
        if suffix and suffix not in VIDEO_SUFFIXES:
            known = ", ".join(VIDEO_SUFFIXES)
            raise typer.BadParameter(f"{output}: a clip is no {suffix} file; give one of {known}")
        return VIDEO_GENERATE

    def _check(self) -> None:
        if self.seconds is not None and self.num_frames is not None:
            raise typer.BadParameter("give --frames or --seconds, not both")
        FIELDS["seconds"].check(self.seconds)

    @property
    def _asks_for_clip(self) -> bool:
        return (self.num_frames or 1) != 1 or self.seconds is not None or self.fps is not None

    def first_given(self, output: Path) -> tuple[str, Any]:
        """Return the name and the value of the first option that asks for a clip."""
        given = {"frames": self.num_frames, "seconds": self.seconds, "fps": self.fps}
        return next(((name, value) for name, value in given.items() if value), ("output", str(output)))


NO_CLIP = ClipOptions()


def check_file(params: GenerationParams, destination: Destination) -> None:
    """Raise `InvalidParams` if the file of a clip, whose defaults are filled in, cannot hold it."""
    if params.num_frames != 1:
        file_format = destination.suffix.lower().removeprefix(".")
        check_clip(
            file_format, params.width or 0, params.height or 0, params.num_frames or 1, params.fps or 1
        )


def kind_for(spec: ModelSpec, kind: str | None) -> str:
    """Return the kind asked for, or else what the model makes by default."""
    return kind or own_kind(spec)


def with_lengths(
    requests: Sequence[GenerationParams], spec: ModelSpec, kind: str, clip: ClipOptions, output: Path
) -> list[GenerationParams]:
    """Return the requests with their numbers of frames. Raise `InvalidParams` or `ModelNotCapable`."""
    if kind == VIDEO_GENERATE and not spec.is_video:
        field, value = clip.first_given(output)
        remedy = f"{spec.name} generates single images; {_where_clips_are_made()}"
        raise ModelNotCapable(field, value, remedy)
    return [with_length(kind, spec, request) for request in requests]


def _where_clips_are_made() -> str:
    from diffuserve.models.bundled import bundled_models
    from diffuserve.models.registry import read_offer

    makers = [name for name in bundled_models() if read_offer(name)[0].is_video]
    if makers:
        return f"give --model {makers[0]}, or another that makes clips"
    return "give --model with one that makes clips: the folder or the hub id of a Wan checkpoint"
