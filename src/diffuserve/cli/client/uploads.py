"""Uploads of local images to a server, with their progress."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TransferSpeedColumn,
)

from diffuserve.cli.display.console import Console, text_column
from diffuserve.cli.images.input_images import is_local
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.requests.input_image import ImageInput
from diffuserve.domain.requests.params import GenerationParams

if TYPE_CHECKING:
    from diffuserve.domain.resources.file import FileResource
    from diffuserve.sdk.async_client import AsyncClient


async def with_uploads(client: "AsyncClient", params: GenerationParams, console: Console) -> GenerationParams:
    """Return the parameters with uploaded files in place of local ones, each of which is uploaded once."""
    named = [value for _, value in params.input_images if isinstance(value, str) and is_local(value)]
    paths = list(dict.fromkeys(named))
    files = await upload(client, [Path(path) for path in paths], console)
    ids: dict[ImageInput, str] = {path: file.id for path, file in zip(paths, files, strict=True)}
    return params.with_images(lambda _field, image: ids.get(image, image))


async def upload(client: "AsyncClient", paths: Sequence[Path], console: Console) -> "list[FileResource]":
    """Upload files one after another, with a bar for each on a terminal. Raise `InvalidParams`."""
    files = []
    with Progress(*_columns(), console=console, transient=True, disable=not console.is_terminal) as bars:
        for path in paths:
            try:
                task = bars.add_task(path.name, total=path.stat().st_size)
                files.append(await client.files.upload(path, partial(_advance, bars, task)))
            except OSError as error:
                raise InvalidParams("image", str(path), f"cannot be read: {error.strerror}") from error
    return files


def _advance(bars: Progress, task: TaskID, sent: int) -> None:
    bars.update(task, completed=sent)


def _columns() -> tuple[ProgressColumn, ...]:
    return (
        text_column("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
