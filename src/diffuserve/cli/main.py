"""The command line."""

import sys
from typing import Annotated

import typer

from diffuserve.cli.commands import COMMANDS
from diffuserve.cli.display.echo import echo
from diffuserve.cli.exit_codes import BAD_INPUT, FAILED, INTERRUPTED
from diffuserve.cli.lazy import MARKUP, lazy_group
from diffuserve.domain.errors import (
    AdapterNotFound,
    BandNotAllowed,
    DeviceUnavailable,
    DiffuserveError,
    Forbidden,
    HubUnavailable,
    ImageBlocked,
    InvalidAdapter,
    InvalidModel,
    InvalidParams,
    ModelNotFound,
    NotFound,
    PromptBlocked,
    ServerRefused,
    TooLarge,
    Unauthorized,
)
from diffuserve.telemetry.repeats import limit_repeats
from diffuserve.version import __version__

_REFUSALS = (
    BandNotAllowed,
    AdapterNotFound,
    DeviceUnavailable,
    Forbidden,
    ImageBlocked,
    InvalidAdapter,
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
    add_completion=True,
    rich_markup_mode=MARKUP,
    pretty_exceptions_enable=False,
    cls=lazy_group(*COMMANDS),
)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        echo(f"diffuserve {__version__}")
        raise typer.Exit
    if not _is_worker_of_a_server():
        _warn_of_unknown_variables()


def _is_worker_of_a_server() -> bool:
    """Return whether a server started this process, and has warned already."""
    return any(word.startswith("--parent-fd") for word in sys.argv)


def _warn_of_unknown_variables() -> None:
    from diffuserve.cli.environment import unknown_variables

    for name, meant in unknown_variables().items():
        guess = f"; did you mean {meant}?" if meant else ""
        echo(f"warning: {name} is not a setting of diffuserve and has no effect{guess}", err=True)


def main() -> None:
    """Run a command; bad input is one line on stderr and exit code 2."""
    limit_repeats()
    try:
        app(prog_name="diffuserve")  # under that name shells complete it, however it was started
    except Unauthorized as error:
        _complain(f"{error} (with --key, or DIFFUSERVE_API_KEY)", BAD_INPUT)
    except HubUnavailable as error:
        _complain(error, FAILED)
    except _REFUSALS as error:
        _complain(error, BAD_INPUT)
    except DiffuserveError as error:
        _complain(error, FAILED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _complain(error: Exception | str, code: int) -> None:
    from diffuserve.cli.display.console import Console  # imported only where something is shown

    Console(stderr=True).print(f"error: {error}", style="red", highlight=False, soft_wrap=True)
    sys.exit(code)
