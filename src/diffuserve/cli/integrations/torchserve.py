"""`diffuserve integrations torchserve`: a model archive."""

from pathlib import Path
from typing import Annotated

import typer

from diffuserve.cli import options
from diffuserve.cli.display.echo import echo
from diffuserve.cli.integrations.group import ENGINE_SETTINGS, told, writing
from diffuserve.integrations.torchserve.archive import write_archive
from diffuserve.settings import Settings

EXAMPLES = """
Examples:

  diffuserve integrations torchserve model-store

  diffuserve integrations torchserve model-store --model flux-schnell --name images --quantization int8

  torchserve --start --ncs --model-store model-store --models diffuserve=diffuserve.mar
"""


@options.takes_settings(*ENGINE_SETTINGS)
def torchserve(
    settings: Settings,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The model store, made if need be.")],
    name: Annotated[str, typer.Option(help="Name by which clients ask for the model.")] = "diffuserve",
) -> None:
    """Write a model archive (.mar) for TorchServe into its model store; the path goes to stdout.

    TorchServe starts the engine with these settings, and with what its environment says of others. Give
    paths as they are on TorchServe's machine.
    """
    with writing(folder):
        echo(write_archive(folder, name, told(settings)))
