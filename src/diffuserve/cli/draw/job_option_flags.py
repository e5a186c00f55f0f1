"""Options of the commands that submit, derived from the options of jobs."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import Field
from functools import wraps
from typing import Annotated, Any

import typer

from diffuserve.cli.options import set_signature
from diffuserve.cli.panels import QUEUE
from diffuserve.domain.jobs.job_options import JOB_OPTIONS, value_type
from diffuserve.options import option_of


def takes_job_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of jobs in place of its parameter `job_options`.

    It receives those that were given, by name.
    """

    @wraps(command)
    def run(*arguments: Any, **named: Any) -> None:
        values = {name: named.pop(name) for name in JOB_OPTIONS}
        given = {name: value for name, value in values.items() if value != JOB_OPTIONS[name].default}
        command(*arguments, job_options=given, **named)

    set_signature(run, list(_expanded(command)))
    return run


def _expanded(command: Callable[..., None]) -> Iterator[inspect.Parameter]:
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name == "job_options":
            yield from map(_parameter, JOB_OPTIONS.values())
        else:
            yield parameter


def _parameter(declared: Field[Any]) -> inspect.Parameter:
    kind: Any = value_type(declared)
    flag = f"--{declared.name.replace('_', '-')}"
    flag = f"{flag}/--no-{flag[2:]}" if kind is bool else flag
    option = typer.Option(flag, help=option_of(declared).help, rich_help_panel=QUEUE, show_default=False)
    return inspect.Parameter(
        declared.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=declared.default,
        annotation=Annotated[kind if declared.default is not None else kind | None, option],
    )
