"""Where images go."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from diffuserve.media.file_names import slug
from diffuserve.media.image_file import SUFFIXES, read_parameters


@dataclass(frozen=True)
class Destination:
    """A folder, or a single file name that several images are numbered after."""

    folder: Path
    stem: str | None
    suffix: str

    @classmethod
    def parse(cls, output: Path) -> "Destination":
        """`output` is a file if it has an image's suffix, else a folder."""
        if output.suffix.lower() in SUFFIXES:
            return cls(output.parent, output.stem, output.suffix)
        if output.suffix and not output.is_dir():
            known = ", ".join(SUFFIXES)
            raise typer.BadParameter(f"{output}: unknown kind of image {output.suffix!r}; known: {known}")
        return cls(output, None, ".png")

    def path(self, parameters: Mapping[str, Any], number: int | None) -> Path:
        """For the image of these parameters; `number` counts them where there are several.

        A named file is replaced, as with any tool's `-o`; one named after its prompt only by the
        same image drawn again.
        """
        if self.stem is not None:
            stem = self.stem if number is None else f"{self.stem}-{number}"
            return self.folder / f"{stem}{self.suffix}"
        name = f"{slug(parameters['prompt'])}-{parameters['seed']}{self.suffix}"
        return _free(self.folder / name, parameters)


def _free(path: Path, parameters: Mapping[str, Any]) -> Path:
    """The path, numbered if another image is there."""
    candidate, number = path, 2
    while candidate.exists() and read_parameters(candidate) != parameters:
        candidate, number = path.with_stem(f"{path.stem}-{number}"), number + 1
    return candidate
