"""`diffuserve list` and `diffuserve rm`: the models on this machine."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from diffuserve.cli import options
from diffuserve.cli.completion import model_names
from diffuserve.cli.display.console import Console
from diffuserve.cli.display.echo import echo
from diffuserve.cli.display.results import results
from diffuserve.cli.display.sizes import human_bytes
from diffuserve.domain.errors import InvalidParams
from diffuserve.models.folders.names import ALIASES
from diffuserve.models.installed import InstalledModel, installed_models, plan_removal

EXAMPLES = """
Examples:

  diffuserve list

  diffuserve list --json

  diffuserve rm flux-schnell
"""

ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Short name such as flux-schnell, or hub id.",
        show_default=False,
        autocompletion=model_names,
    ),
]


def list_models(as_json: options.Json = False) -> None:
    """List the models on this machine: those that ship with diffuserve, were imported or pulled.

    Names are what `--model` takes. A folder in diffusers' format works as well, wherever it is.
    """
    found = installed_models()
    if as_json:
        echo(json.dumps([{**asdict(model), "path": str(model.path)} for model in found], indent=2))
        return
    results().print(_table(found))
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for model in found:
        if model.problem:
            console.print(f"{model.name}: {model.problem}", style="yellow")
    short = ", ".join(f"{name} is {hub_id}" for name, hub_id in ALIASES.items())
    console.print(f"`diffuserve pull NAME` downloads another; {short}", style="dim")


def rm(
    model: ModelName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove it without asking.")] = False,
) -> None:
    """Remove a model that was pulled or imported, and free its space. The bundled ones stay.

    A short name or hub id removes every commit of it on this machine, owner/name@COMMIT that one alone.
    """
    removal = plan_removal(model)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    size = human_bytes(removal.num_bytes)
    if not yes:
        if not sys.stdin.isatty():
            raise InvalidParams("yes", yes, f"nobody can be asked here; give --yes to remove {removal.model}")
        if not typer.confirm(f"Remove {removal.model} ({size})?", err=True):
            raise typer.Exit(1)
    removal.carry_out()
    console.print(f"removed {removal.model}, {size} freed")


def _table(found: Sequence[InstalledModel]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("name", "family", "dtype", "size", "image", "steps", "source", "path"):
        table.add_column(name, no_wrap=True, justify="right" if name in ("size", "steps") else "left")
    for model in found:
        image = f"{model.width}x{model.height}" if model.width else ""
        steps = str(model.num_inference_steps or "")
        size = human_bytes(model.num_bytes)
        table.add_row(
            model.name,
            model.family or "?",
            model.dtype,
            size,
            image,
            steps,
            model.source,
            str(model.path),
        )
    return table
