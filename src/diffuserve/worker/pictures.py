"""From a finished request to the files that its client gets."""

from collections.abc import Callable, Sequence
from pathlib import Path

from PIL.Image import Image

from diffuserve.engine.outputs import GenerationResult
from diffuserve.media.picture_file import save_picture
from diffuserve.storage.base import content_type_of
from diffuserve.version import __version__
from diffuserve.worker.messages import FinishedFile

ImageFilter = Callable[[Sequence[Image]], None]
"""Looks at the pictures of a request; raises a `RequestFailed` to keep them in."""

THUMBNAIL_PIXELS = 256


def pass_all(_images: Sequence[Image]) -> None:
    """The filter that lets everything through."""


def write_pictures(
    result: GenerationResult, model: str, folder: Path, output_format: str
) -> tuple[FinishedFile, ...]:
    """Every picture with what draws it again inside, and a thumbnail of the first."""
    files = []
    for index, image in enumerate(result.images):
        seed = result.seed + index
        path = folder / f"{index}.{output_format}"
        parameters = {**result.params.to_dict(), "seed": seed, "num_images": 1, "model": model}
        save_picture(image, path, parameters | {"version": __version__})
        files.append(_file(path, image, index, seed))
    return (*files, _thumbnail(result.images[0], folder))


def _thumbnail(image: Image, folder: Path) -> FinishedFile:
    small = image.copy()
    small.thumbnail((THUMBNAIL_PIXELS, THUMBNAIL_PIXELS))
    path = folder / "thumbnail.webp"
    small.save(path, format="WEBP", quality=80, method=1)
    return _file(path, small, 0, None, role="thumbnail")


def _file(path: Path, image: Image, index: int, seed: int | None, role: str = "image") -> FinishedFile:
    return FinishedFile(
        path=str(path),
        name=path.name,
        content_type=content_type_of(path.name),
        width=image.width,
        height=image.height,
        index=index,
        role=role,
        seed=seed,
    )
