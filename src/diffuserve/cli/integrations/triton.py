"""`diffuserve integrations triton`: a model repository."""

from pathlib import Path
from typing import Annotated

import typer

from diffuserve.cli import options
from diffuserve.cli.display.echo import echo
from diffuserve.cli.integrations.group import ENGINE_SETTINGS, told, writing
from diffuserve.integrations.triton.repository import write_repository
from diffuserve.settings import Settings

EXAMPLES = """
Examples:

  diffuserve integrations triton model-repository

  diffuserve integrations triton model-repository --model flux-schnell --name images --quantization int8

  tritonserver --model-repository=model-repository
"""


@options.takes_settings(*ENGINE_SETTINGS)
def triton(
    settings: Settings,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The model repository, made if need be.")],
    name: Annotated[str, typer.Option(help="Name by which clients ask for the model.")] = "diffuserve",
) -> None:
    """Write a model for Triton's Python backend into a model repository; its folder goes to stdout.

    Triton starts the engine with these settings, and with what its environment says of others. Give paths
    as they are on Triton's machine.
    """
    given = dict(told(settings))
    device = given.pop("device", None)
    with writing(folder):
        echo(write_repository(folder, name, given, device))
