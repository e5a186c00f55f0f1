"""Fetching the pictures of a job that succeeded."""

import os
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

from diffuserve.cli.destination import Destination
from diffuserve.client.jobs import Client
from diffuserve.client.views import ArtifactView, JobView
from diffuserve.media.picture_file import read_parameters, save_picture

_SUFFIXES = {"image/png": (".png",), "image/webp": (".webp",), "image/jpeg": (".jpg", ".jpeg")}


async def fetch_pictures(client: Client, job: JobView, destination: Destination) -> list[Path]:
    """Their paths, in order; several pictures of a named file are numbered after it."""
    pictures = job.result.pictures if job.result else []
    destination.folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with tempfile.TemporaryDirectory(dir=destination.folder, prefix=".fetch-") as folder:
        for number, picture in enumerate(pictures, 1):
            fetched = Path(folder) / picture.name
            await client.download(job.id, picture.index, fetched)
            parameters = read_parameters(fetched) or _parameters(job, picture)
            path = destination.path(parameters, number if len(pictures) > 1 else None)
            _place(fetched, picture, path, parameters)
            paths.append(path)
    return paths


def _parameters(job: JobView, picture: ArtifactView) -> dict[str, Any]:
    """Of a file that carries none: what its name is made of."""
    seed = job.input.get("seed", 0) + picture.index if picture.seed is None else picture.seed
    return {"prompt": job.drawn_prompt, "seed": seed}


def _place(fetched: Path, picture: ArtifactView, path: Path, parameters: dict[str, Any]) -> None:
    """Move the file as it is, or save it anew where another format is asked for."""
    if path.suffix.lower() in _SUFFIXES.get(picture.content_type, (path.suffix.lower(),)):
        os.replace(fetched, path)
        return
    with Image.open(fetched) as image:
        save_picture(image.convert("RGB"), path, parameters)
