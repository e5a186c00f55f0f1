"""Options of a job beside what is drawn, declared once.

From that derive the bodies of the API, the options of the command line, and the table of the reference.
"""

from collections.abc import Mapping
from dataclasses import Field, dataclass
from types import NoneType
from typing import Any, Final, get_args

from diffuserve.options import option, option_fields

MAX_JOB_SECONDS: Final = 30 * 86_400.0
"""Longest time that a job may name."""
MAX_TEXT_CHARACTERS: Final = 200
"""Characters of an option that is a text."""


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """Wishes about how a job is kept, tried and placed; what is left out is as the server does it."""

    retention_seconds: float | None = option(
        None,
        "Seconds after its end for which the job and its files are kept, at most the server's own.",
        gt=0,
        le=MAX_JOB_SECONDS,
    )
    store: bool = option(
        True,
        "Keep the job after its delivery; else it is deleted soon after, with its prompt, its files and the "
        "images that it read.",
    )
    max_attempts: int | None = option(
        None, "Attempts that may fail before the job does; fewer than the server's own.", ge=1, le=10
    )
    start_timeout_seconds: float | None = option(
        None,
        "Seconds within which a worker has to start it; else its fallback model draws it, or it expires.",
        gt=0,
        le=MAX_JOB_SECONDS,
    )
    fallback_model: str | None = option(
        None, "Model that draws the job if no worker has its own, or none starts it in time."
    )
    worker_hint: str | None = option(
        None, "Any text: jobs with the same one go to the same worker, unless that keeps them waiting."
    )


JOB_OPTIONS: Final[Mapping[str, Field[Any]]] = option_fields(JobOptions)
"""The options by name."""


def value_type(declared: Field[Any]) -> type:
    """Return the type of an option's values, without `None`."""
    kinds = get_args(declared.type) or (declared.type,)
    (kind,) = (kind for kind in kinds if kind is not NoneType)
    found: type = kind
    return found
