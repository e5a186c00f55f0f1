"""Download of the images, clips or sounds of a job that succeeded.

Nothing in a path comes from the server: files that arrive are numbered, and those that stay are named by the
user, or after their prompt.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

from diffuserve.cli.images.destination import Destination, parameters_in
from diffuserve.domain.errors import ServerRefused
from diffuserve.domain.resources.job import ArtifactResource, JobResource
from diffuserve.media.sound_file import SOUND_FORMATS
from diffuserve.media.video_file import VIDEO_FORMATS
from diffuserve.sdk.async_client import AsyncClient

_SUFFIXES = (
    {"image/png": (".png",), "image/webp": (".webp",), "image/jpeg": (".jpg", ".jpeg")}
    | {known.media_type: (known.suffix,) for known in VIDEO_FORMATS.values()}
    | {known.media_type: (known.suffix,) for known in SOUND_FORMATS.values()}
)


async def fetch_images(client: AsyncClient, job: JobResource, destination: Destination) -> list[Path]:
    """Download a job's images, clips or sounds; return their paths, in order."""
    images = job.result.outputs if job.result else []
    destination.folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with tempfile.TemporaryDirectory(dir=destination.folder, prefix=".fetch-") as folder:
        for number, image in enumerate(images, 1):
            fetched = Path(folder) / str(number)
            await client.download(job.id, image.index, fetched)
            parameters = _named_by(parameters_in(fetched)) or _parameters(job, image)
            path = destination.path(parameters, number if len(images) > 1 else None)
            if image.role != "image":  # is not converted: it keeps the suffix of what it is
                path = path.with_suffix(_SUFFIXES.get(image.content_type, (path.suffix,))[0])
            _place(fetched, image, path, parameters)
            paths.append(path)
    return paths


def _named_by(found: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a file if they name it, `{}` if they are of other types."""
    is_whole = isinstance(found.get("prompt"), str) and isinstance(found.get("seed"), int)
    return found if is_whole else {}


def _parameters(job: JobResource, image: ArtifactResource) -> dict[str, Any]:
    """Return the parameters for the name of a file that carries none."""
    first = job.input.get("seed")
    seed = (first if isinstance(first, int) else 0) + image.index if image.seed is None else image.seed
    return {"prompt": job.final_prompt, "seed": seed}


def _place(fetched: Path, image: ArtifactResource, path: Path, parameters: dict[str, Any]) -> None:
    """Move the file to `path`, or convert an image if the suffix asks for another format."""
    if path.suffix.lower() in _SUFFIXES.get(image.content_type, (path.suffix.lower(),)):
        os.replace(fetched, path)
        return
    from PIL import Image, UnidentifiedImageError

    from diffuserve.media.file_names import OPAQUE_FORMATS
    from diffuserve.media.image_file import save_image
    from diffuserve.media.transparency import flattened

    try:
        with Image.open(fetched) as opened:
            is_opaque = path.suffix.lower().removeprefix(".") in OPAQUE_FORMATS
            shown = flattened(opened).convert("RGB") if is_opaque else opened
            save_image(shown, path, parameters)
    except UnidentifiedImageError as error:
        raise ServerRefused(f"the server's file {image.index} of the job is no image") from error
