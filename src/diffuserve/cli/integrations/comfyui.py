"""`diffuserve integrations comfyui`: a folder of nodes."""

from pathlib import Path
from typing import Annotated

import typer

from diffuserve.cli.display.echo import echo
from diffuserve.cli.integrations.group import writing
from diffuserve.integrations.comfyui.node_folder import write_nodes

EXAMPLES = """
Examples:

  diffuserve integrations comfyui ~/ComfyUI/custom_nodes
"""


def comfyui(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="ComfyUI's folder custom_nodes.")],
    name: Annotated[str, typer.Option(help="Name of the folder in it.")] = "diffuserve",
) -> None:
    """Write nodes that draw on a diffuserve server into ComfyUI's custom_nodes; their folder goes to stdout.

    Start ComfyUI with DIFFUSERVE_SERVER, and DIFFUSERVE_API_KEY where the server asks for a key.
    """
    with writing(folder):
        echo(str(write_nodes(folder, name)))
