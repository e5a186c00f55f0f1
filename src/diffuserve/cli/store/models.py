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
from diffuserve.models.folders.known_models import KNOWN_MODELS
from diffuserve.models.installed import InstalledModel, installed_models, plan_removal

EXAMPLES = """
Examples:

  diffuserve list

  diffuserve list --json

  diffuserve list --known

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


Known = Annotated[
    bool, typer.Option("--known", help="List the models with short names that can be pulled, instead.")
]


def list_models(as_json: options.Json = False, known: Known = False) -> None:
    """List the models on this machine: those that ship with diffuserve, were imported or pulled.

    Names are what `--model` takes. A folder in diffusers' format works as well, wherever it is.
    """
    if known:
        show_known_models(as_json)
        return
    found = installed_models()
    if as_json:
        echo(json.dumps([{**asdict(model), "path": str(model.path)} for model in found], indent=2))
        return
    results().print(_table(found))
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for model in found:
        if model.problem:
            console.print(f"{model.name}: {model.problem}", style="yellow")
    console.print(
        "`diffuserve pull NAME` downloads another, `diffuserve list --known` shows those with short names, "
        "and `diffuserve import FILE --as NAME` makes one of a single file",
        style="dim",
    )


def show_known_models(as_json: bool) -> None:
    """Show the models that have short names, each with its license and size."""
    if as_json:
        echo(json.dumps([asdict(model) for model in KNOWN_MODELS], indent=2))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("name", "hub id", "license", "download", "consent on its page"):
        table.add_column(heading, no_wrap=True)
    for model in KNOWN_MODELS:
        table.add_row(" ".join(model.names), model.hub_id, model.license, model.size, model.consent)
    results().print(table)


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
            model.run_by or model.family or "?",
            model.dtype,
            size,
            image,
            steps,
            model.source,
            str(model.path),
        )
    return table
