"""Paths of the files of images, clips and sounds that commands write."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.extras import Extra, missing_module
from diffuserve.domain.jobs.job import AUDIO_GENERATE, VIDEO_GENERATE
from diffuserve.media.file_names import FORMATS, slug
from diffuserve.media.sound_file import DEFAULT_SOUND_FORMAT, SOUND_FORMATS
from diffuserve.media.video_file import DEFAULT_VIDEO_FORMAT, VIDEO_FORMATS

VIDEO_SUFFIXES = tuple(known.suffix for known in VIDEO_FORMATS.values())
SOUND_SUFFIXES = tuple(known.suffix for known in SOUND_FORMATS.values())
_IN_FOLDERS = {VIDEO_GENERATE: f".{DEFAULT_VIDEO_FORMAT}", AUDIO_GENERATE: f".{DEFAULT_SOUND_FORMAT}"}


@dataclass(frozen=True)
class Destination:
    """Destination of what is made: a folder, or a file name, after which several of them are numbered."""

    folder: Path
    stem: str | None
    suffix: str

    @classmethod
    def parse(cls, output: Path) -> "Destination":
        """Take `output` for a file if it has the suffix of one of these, else for a folder."""
        if output.suffix.lower() in (*FORMATS, *VIDEO_SUFFIXES, *SOUND_SUFFIXES):
            return cls(output.parent, output.stem, output.suffix)
        if output.suffix and not output.is_dir():
            clips = ", ".join(suffix for suffix in VIDEO_SUFFIXES if suffix not in FORMATS)
            known = f"{', '.join(FORMATS)}; of clips {clips}; of sounds {', '.join(SOUND_SUFFIXES)}"
            raise typer.BadParameter(f"{output}: unknown format {output.suffix!r}; known: {known}")
        return cls(output, None, ".png")

    def of_kind(self, kind: str) -> "Destination":
        """Return the destination for results of a kind; those in a folder are of the default format."""
        return replace(self, suffix=_IN_FOLDERS.get(kind, self.suffix)) if self.stem is None else self

    def check(self) -> None:
        """Raise `InvalidParams` if no image can be written here. Leave nothing behind."""
        named = None if self.stem is None else self.folder / f"{self.stem}{self.suffix}"
        if named is not None and named.is_dir():
            raise InvalidParams("output", str(named), "is a folder; give another name for the image")
        parent = next(folder for folder in (self.folder, *self.folder.absolute().parents) if folder.exists())
        try:
            with tempfile.TemporaryFile(dir=parent):
                pass
        except OSError as error:
            remedy = f"cannot be written to {parent} ({error.strerror}); give another folder with -o"
            raise InvalidParams("output", str(named or self.folder), remedy) from error

    def path(self, parameters: Mapping[str, Any], number: int | None) -> Path:
        """Return the path for the image of these parameters; `number` counts several of a named file.

        A file named by the user is replaced, as with `-o` of any tool. A file named after its prompt is
        replaced only by an image with the same parameters.
        """
        if self.stem is not None:
            stem = self.stem if number is None else f"{self.stem}-{number}"
            return self.folder / f"{stem}{self.suffix}"
        name = f"{slug(parameters['prompt'])}-{int(parameters['seed'])}{self.suffix}"
        return _free(self.folder / name, parameters)


def parameters_in(file: Path) -> dict[str, Any]:
    """Return the parameters that an image carries; `{}` if it has none, or if nothing here reads images."""
    if missing_module(Extra.PICTURES) is not None:
        return {}
    from diffuserve.media.image_file import read_parameters  # Pillow is needed only where an image is

    return read_parameters(file)


def _free(path: Path, parameters: Mapping[str, Any]) -> Path:
    """Return `path`, numbered if a different image is there."""
    candidate, number = path, 2
    while candidate.exists() and parameters_in(candidate) != parameters:
        candidate, number = path.with_stem(f"{path.stem}-{number}"), number + 1
    return candidate
