"""`diffuserve ps`: what a server runs."""

import dataclasses
from typing import Annotated

import typer

from diffuserve.cli import options
from diffuserve.cli.client.ask import ask
from diffuserve.cli.client.connect import check_listening
from diffuserve.cli.display.console import Console
from diffuserve.cli.display.echo import echo
from diffuserve.cli.display.results import results
from diffuserve.settings import Settings

EXAMPLES = """
Examples:

  diffuserve ps

  diffuserve ps --server https://images.example.com --json
"""


@options.takes_settings("server", "api_key")
def ps(
    settings: Settings,
    all: Annotated[
        bool, typer.Option("--all", help="Show lost workers that others of their name replaced, too.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Show what a server runs: its workers, its models, and the jobs that run now.

    Workers are shown to operators; with another key, or while there are none, the jobs of its tenant are.
    """
    check_listening(settings)
    from diffuserve.cli.operate.server_tables import view_of
    from diffuserve.cli.operate.server_view import read_view, replaced_line, without_replaced
    from diffuserve.client.codec import encode

    view = ask(settings, read_view, patience_seconds=0.0)  # whether a server is there is what it is asked
    if as_json:
        echo(encode(view))
        return
    workers = view.workers or ()
    shown = workers if all else without_replaced(workers)
    results().print(view_of(view if view.workers is None else dataclasses.replace(view, workers=shown)))
    if len(shown) < len(workers):
        echo(replaced_line(len(workers) - len(shown)), err=True)
    if view.refusal:
        Console(stderr=True, highlight=False, soft_wrap=True).print(view.refusal, style="yellow")
