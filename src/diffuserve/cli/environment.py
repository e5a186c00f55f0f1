"""Variables of the environment that look like settings."""

import os
from collections.abc import Iterable, Mapping

from diffuserve.domain.text.nearest import nearest
from diffuserve.setting_errors import PREFIX, variable_of
from diffuserve.settings import Settings


def unknown_variables() -> Mapping[str, str | None]:
    """Return the variables of this process that begin as settings do and are none, with the nearest one."""
    return unknown_among(os.environ)


def unknown_among(names: Iterable[str]) -> Mapping[str, str | None]:
    """Return those of the names that begin as settings do and are none, with the nearest setting."""
    known = list(map(variable_of, Settings.model_fields))
    suspects = sorted(name for name in names if name.upper().startswith(PREFIX))
    return {name: nearest(name, known) for name in suspects if name.upper() not in known}
