"""`diffuserve integrations modal`: an app for Modal."""

from pathlib import Path
from typing import Annotated

import typer

from diffuserve.cli import options
from diffuserve.cli.display.echo import echo
from diffuserve.cli.integrations.group import ENGINE_SETTINGS, told, writing
from diffuserve.integrations.modal.app_file import write_app
from diffuserve.settings import Settings

EXAMPLES = """
Examples:

  diffuserve integrations modal images.py

  diffuserve integrations modal images.py --model flux-schnell --gpu L40S --quantization int8

  modal deploy images.py
"""


@options.takes_settings(*ENGINE_SETTINGS)
def modal(
    settings: Settings,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The app's file, such as images.py.")],
    gpu: Annotated[str, typer.Option(help="GPU of a container, by Modal's name.")] = "H100",
) -> None:
    """Write an app for Modal, with the model on a Volume and snapshots; its path goes to stdout.

    Give paths as they are in Modal's containers.
    """
    with writing(file):
        echo(write_app(file, {"model": settings.engine_process.model, **told(settings)}, gpu))
