"""The command line."""

import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console

from diffuserve.cli import api, jobs, keys, moderate, safety, serve, submit, worker
from diffuserve.cli.calibrate import calibrate
from diffuserve.cli.db import db
from diffuserve.cli.demo import demo
from diffuserve.cli.generate import EXAMPLES, INTERRUPTED, generate
from diffuserve.cli.models import models
from diffuserve.domain.errors import (
    BandNotAllowed,
    DeviceUnavailable,
    DiffuserveError,
    Forbidden,
    InvalidModel,
    InvalidParams,
    ModelNotFound,
    NotFound,
    PromptBlocked,
    ServerRefused,
    TooLarge,
    Unauthorized,
)
from diffuserve.version import __version__

BAD_INPUT = 2
_REFUSALS = (
    BandNotAllowed,
    DeviceUnavailable,
    Forbidden,
    InvalidModel,
    InvalidParams,
    ModelNotFound,
    NotFound,
    PromptBlocked,
    ServerRefused,
    TooLarge,
)

_FIRST_STEPS = """
Examples:

  diffuserve serve

  diffuserve submit "a red circle on a white background" -o circle.png

  diffuserve generate "a blue star" "a green ring" --size 192x128 --steps 8 --seed 7 --grid
"""

app = typer.Typer(
    name="diffuserve",
    help="Serve diffusion models with step-level continuous batching.",
    epilog=_FIRST_STEPS,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
app.command(epilog=serve.EXAMPLES)(serve.serve)
app.command(epilog=submit.EXAMPLES, no_args_is_help=True)(submit.submit)
app.add_typer(jobs.jobs)
app.command(epilog=EXAMPLES, no_args_is_help=True)(generate)
app.command()(models)
app.command(epilog="Example:\n\n  diffuserve calibrate --model /models/FLUX.1-schnell")(calibrate)
app.command(epilog="Example:\n\n  diffuserve demo -o out/demo")(demo)
app.command(epilog=api.EXAMPLES)(api.api)
app.command(epilog=worker.EXAMPLES)(worker.worker)
app.command(epilog=moderate.EXAMPLES, no_args_is_help=True)(moderate.moderate)
app.add_typer(keys.keys)
app.add_typer(safety.safety)
app.add_typer(db)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"diffuserve {__version__}")
        raise typer.Exit


def main() -> None:
    """Run a command; what a person got wrong is one line on stderr and exit code 2."""
    try:
        app()
    except Unauthorized as error:
        _complain(f"{error} (with --key, or DIFFUSERVE_API_KEY)", BAD_INPUT)
    except ValidationError as error:
        _complain("; ".join(map(_setting_error, error.errors())), BAD_INPUT)
    except _REFUSALS as error:
        _complain(error, BAD_INPUT)
    except DiffuserveError as error:
        _complain(error, 1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _setting_error(error: Mapping[str, Any]) -> str:
    """Name the setting, its value and the remedy, in the form of `InvalidParams`."""
    setting, message = ".".join(map(str, error["loc"])), str(error["msg"])
    return f"{setting}={error['input']!r}: {message[:1].lower()}{message[1:]}"


def _complain(error: Exception | str, code: int) -> None:
    Console(stderr=True).print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
    sys.exit(code)
