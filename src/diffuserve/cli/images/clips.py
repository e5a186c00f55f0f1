"""Clips and sounds on the command line: what asks for one, and the model that makes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from diffuserve.cli.images.destination import SOUND_SUFFIXES, VIDEO_SUFFIXES, Destination
from diffuserve.domain.errors import InvalidParams, ModelNotCapable
from diffuserve.domain.jobs.job import AUDIO_GENERATE, IMAGE_GENERATE, VIDEO_GENERATE
from diffuserve.domain.jobs.kinds import KINDS, ability, own_kind, with_length
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import FIELDS, GenerationParams
from diffuserve.media.file_names import FORMATS, check_keeps_transparency
from diffuserve.media.sound_file import check_sound
from diffuserve.media.video_file import check_clip
from diffuserve.protocol.config import ImageOptions
from diffuserve.safety.sound_judges import WITHHELD, lets_sounds_out

_CLIPS_ALONE = frozenset(VIDEO_SUFFIXES) - frozenset(FORMATS)
_IMAGES_ALONE = frozenset(FORMATS) - frozenset(VIDEO_SUFFIXES)


@dataclass(frozen=True)
class ClipOptions:
    """Options that say how long a clip or a sound is; `None` where they were not given."""

    num_frames: int | None = None
    seconds: float | None = None
    fps: int | None = None

    def kind(self, output: Path | None) -> str | None:
        """Return the kind of what is asked for; `None` where neither options nor the file's name tell.

        A length in seconds is one of a clip or of a sound.

        Raise `typer.BadParameter` for a file that cannot hold it, and `InvalidParams` for a bad length.
        """
        self._check()
        suffix = "" if output is None or output.is_dir() else output.suffix.lower()
        if suffix in SOUND_SUFFIXES:
            return self._sound(output)
        if not self._asks_for_clip and self.seconds is None:
            if self.num_frames == 1 or suffix in _IMAGES_ALONE:
                return IMAGE_GENERATE
            return VIDEO_GENERATE if suffix in _CLIPS_ALONE else None
        if suffix and suffix not in VIDEO_SUFFIXES:
            known = ", ".join(VIDEO_SUFFIXES)
            raise typer.BadParameter(f"{output}: a clip is no {suffix} file; give one of {known}")
        is_told = self._asks_for_clip or suffix in _CLIPS_ALONE
        return VIDEO_GENERATE if is_told else None

    def _sound(self, output: Path | None) -> str:
        if self._asks_for_clip or self.num_frames is not None:
            raise typer.BadParameter(f"{output}: a sound has no frames; leave out --frames and --fps")
        return AUDIO_GENERATE

    def _check(self) -> None:
        if self.seconds is not None and self.num_frames is not None:
            raise typer.BadParameter("give --frames or --seconds, not both")
        FIELDS["seconds"].check(self.seconds)

    @property
    def _asks_for_clip(self) -> bool:
        return (self.num_frames or 1) != 1 or self.fps is not None

    def first_given(self, output: Path) -> tuple[str, Any]:
        """Return the name and the value of the first option that asks for a clip or a sound."""
        given = {"frames": self.num_frames, "seconds": self.seconds, "fps": self.fps}
        return next(((name, value) for name, value in given.items() if value), ("output", str(output)))


NO_CLIP = ClipOptions()


def check_leaves(kind: str, images: ImageOptions) -> None:
    """Raise `InvalidParams` for a sound that nothing judges, unless that is allowed."""
    if kind == AUDIO_GENERATE and not lets_sounds_out(images.image_filter, images.allow_unjudged_audio):
        raise InvalidParams("allow_unjudged_audio", images.allow_unjudged_audio, WITHHELD)


def check_file(kind: str, spec: ModelSpec, params: GenerationParams, destination: Destination) -> None:
    """Raise `InvalidParams` if the file of a request, whose defaults are filled in, cannot hold it."""
    file_format = destination.suffix.lower().removeprefix(".")
    if kind == AUDIO_GENERATE:
        if destination.suffix.lower() not in SOUND_SUFFIXES:
            known = ", ".join(SOUND_SUFFIXES)
            raise InvalidParams("output", destination.suffix, f"is no sound; give one of {known}")
        check_sound(file_format, params.seconds or 0, spec.sample_rate)
    elif params.num_frames != 1:
        check_clip(
            file_format, params.width or 0, params.height or 0, params.num_frames or 1, params.fps or 1
        )
    elif spec.has_layers:
        check_keeps_transparency("output", file_format)


def kind_for(spec: ModelSpec, kind: str | None, clip: ClipOptions = NO_CLIP) -> str:
    """Return the kind asked for, or else what the model makes by default."""
    if kind is None and clip.seconds is not None and not spec.is_audio:
        return VIDEO_GENERATE
    return kind or own_kind(spec)


def with_lengths(
    requests: Sequence[GenerationParams], spec: ModelSpec, kind: str, clip: ClipOptions, output: Path
) -> list[GenerationParams]:
    """Return the requests with their numbers of frames. Raise `InvalidParams` or `ModelNotCapable`."""
    if not KINDS[kind].is_made_by(spec):
        raise ModelNotCapable(*clip.first_given(output), f"{ability(spec)}; {_where_made(kind, spec)}")
    return [with_length(kind, spec, request) for request in requests]


def _where_made(kind: str, spec: ModelSpec) -> str:
    if spec.is_audio:
        return f"give -o with one of {', '.join(SOUND_SUFFIXES)}"
    return _where_clips_are_made() if kind == VIDEO_GENERATE else "give --model with one that makes sounds"


def _where_clips_are_made() -> str:
    from diffuserve.models.bundled import bundled_models
    from diffuserve.models.registry import read_offer

    makers = [name for name in bundled_models() if read_offer(name)[0].is_video]
    if makers:
        return f"give --model {makers[0]}, or another that makes clips"
    return "give --model with one that makes clips: the folder or the hub id of a Wan checkpoint"
