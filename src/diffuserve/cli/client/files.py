"""`diffuserve files`: images that a server keeps for jobs."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from diffuserve.cli import options
from diffuserve.cli.client.ask import ask
from diffuserve.cli.client.jobs import age
from diffuserve.cli.display.console import Console
from diffuserve.cli.display.echo import echo
from diffuserve.cli.display.results import print_facts, results
from diffuserve.cli.display.sizes import human_bytes
from diffuserve.cli.images.input_images import check_image
from diffuserve.client.codec import encode
from diffuserve.domain.resources.file import FilePage, FileResource
from diffuserve.domain.text.timestamps import to_rfc3339
from diffuserve.settings import Settings

if TYPE_CHECKING:
    from diffuserve.sdk.async_client import AsyncClient

EXAMPLES = """
Examples:

  diffuserve files upload lighthouse.png harbor.jpg

  diffuserve submit "a lighthouse in snow" --image "$(diffuserve files upload lighthouse.png)" -o snow.png

  diffuserve files rm ID
"""

files = typer.Typer(
    name="files", help="Images that a server keeps for jobs.", epilog=EXAMPLES, no_args_is_help=True
)

FileId = Annotated[str, typer.Argument(metavar="ID", help="Id that `diffuserve files upload` printed.")]


@files.command(epilog=EXAMPLES)
@options.takes_settings("server", "api_key")
def upload(
    settings: Settings,
    paths: Annotated[
        list[Path], typer.Argument(metavar="FILE…", help="PNG, JPEG or WebP images of this machine.")
    ],
    as_json: options.Json = False,
) -> None:
    """Upload images for `--image` and `--mask`. Their ids go to stdout, one a line.

    The same image again is the same file, which is then kept for longer.
    """
    for path in paths:
        check_image("image", str(path))
    uploaded = ask(settings, lambda client: _upload(client, paths))
    if as_json:
        echo(encode(FilePage(data=tuple(uploaded), has_more=False, next=None)))
    else:
        echo("\n".join(file.id for file in uploaded))


async def _upload(client: "AsyncClient", paths: list[Path]) -> list[FileResource]:
    from diffuserve.cli.client.uploads import upload as send

    return await send(client, paths, Console(stderr=True))


@files.command("list", epilog=EXAMPLES)
@options.takes_settings("server", "api_key")
def list_files(
    settings: Settings,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Maximum number of files.")] = 20,
    as_json: options.Json = False,
) -> None:
    """List uploaded images, newest first."""
    page = ask(settings, lambda client: client.files.page(limit))
    if as_json:
        echo(encode(page))
        return
    table = Table("id", "size", "bytes", "age", "name", box=None, header_style="bold", pad_edge=False)
    for file in page.data:
        size, made = f"{file.width}x{file.height}", age(datetime.fromtimestamp(file.created_at, UTC))
        table.add_row(file.id, size, human_bytes(file.bytes), made, file.filename)
    results().print(table)


@files.command(epilog=EXAMPLES)
@options.takes_settings("server", "api_key")
def show(settings: Settings, file_id: FileId, as_json: options.Json = False) -> None:
    """Show what is known of an uploaded image."""
    file = ask(settings, lambda client: client.files.get(file_id))
    if as_json:
        echo(encode(file))
    else:
        print_facts(_facts(file))


@files.command(epilog=EXAMPLES)
@options.takes_settings("server", "api_key")
def rm(
    settings: Settings,
    file_ids: Annotated[list[str], typer.Argument(metavar="ID…", help="Ids of files.")],
) -> None:
    """Delete uploaded images; one that an unfinished job needs stays, and is refused."""
    ask(settings, lambda client: _delete(client, file_ids))


async def _delete(client: "AsyncClient", file_ids: list[str]) -> None:
    for file_id in file_ids:
        await client.files.delete(file_id)
        echo(file_id)


def _facts(file: FileResource) -> dict[str, str]:
    return {
        "id": file.id,
        "name": file.filename,
        "size": f"{file.width}x{file.height}" if file.width else "—",
        "bytes": f"{file.bytes:,}",
        "sha256": file.sha256,
        "created": to_rfc3339(file.created_at),
        "expires": to_rfc3339(file.expires_at),
    }
