"""Paths of image files that commands write."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from diffuserve.domain.errors import InvalidParams
from diffuserve.media.file_names import FORMATS, slug


@dataclass(frozen=True)
class Destination:
    """Destination of images: a folder, or a file name, after which several images are numbered."""

    folder: Path
    stem: str | None
    suffix: str

    @classmethod
    def parse(cls, output: Path) -> "Destination":
        """Take `output` for a file if it has the suffix of an image format, else for a folder."""
        if output.suffix.lower() in FORMATS:
            return cls(output.parent, output.stem, output.suffix)
        if output.suffix and not output.is_dir():
            known = ", ".join(FORMATS)
            raise typer.BadParameter(f"{output}: unknown image format {output.suffix!r}; known: {known}")
        return cls(output, None, ".png")

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
        name = f"{slug(parameters['prompt'])}-{parameters['seed']}{self.suffix}"
        return _free(self.folder / name, parameters)


def _free(path: Path, parameters: Mapping[str, Any]) -> Path:
    """Return `path`, numbered if a different image is there."""
    from diffuserve.media.image_file import read_parameters  # Pillow is needed only where an image is

    candidate, number = path, 2
    while candidate.exists() and read_parameters(candidate) != parameters:
        candidate, number = path.with_stem(f"{path.stem}-{number}"), number + 1
    return candidate
