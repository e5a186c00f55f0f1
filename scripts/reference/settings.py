"""Tables of the settings, by the panels under which the help shows their options."""

import json
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo

from diffuserve.cli.options import described
from diffuserve.cli.panels import PANELS, place_of
from diffuserve.setting_errors import expected, variable_of
from diffuserve.settings import Settings
from reference.markdown import code, prose, table

_HEADINGS = ("variable and its value", "default", "meaning")
_JSON: Mapping[Any, str] = {tuple: "JSON, a list", Mapping: "JSON, an object"}


def regions() -> Mapping[str, str]:
    """Return a table for each panel."""
    rows: dict[str, list[tuple[str, ...]]] = {panel: [] for panel in PANELS.values()}
    for name in sorted(Settings.model_fields, key=place_of):
        assert name in PANELS, f"the setting {name} has no panel: add it to diffuserve/cli/panels.py"
        rows[PANELS[name]].append(_row(name, Settings.model_fields[name]))
    return {panel: table(_HEADINGS, panel_rows) for panel, panel_rows in rows.items()}


def default_of(field: FieldInfo) -> str:
    """Return the cell with a setting's default, in words where it is chosen at run time."""
    _, chosen = described(field)
    if chosen:
        return prose(chosen)
    default = field.get_default(call_default_factory=True)
    return "none" if default in (None, (), {}) else code(_written(default))


def _row(name: str, field: FieldInfo) -> tuple[str, ...]:
    text, _ = described(field)
    return f"{code(variable_of(name))}<br>{_value(field)}", default_of(field), prose(text)


def _written(default: Any) -> str:
    """Return a default as a variable of the environment has it."""
    if isinstance(default, Enum):
        return str(default.value)
    if isinstance(default, float):
        return f"{default:.15g}"
    return str(default) if isinstance(default, str) or not _is_json(default) else json.dumps(default)


def _is_json(default: Any) -> bool:
    return isinstance(default, bool | int | tuple)


def _value(field: FieldInfo) -> str:
    """Say what values a setting takes."""
    words = expected(field)
    if words:
        return words.removeprefix("a ")
    if get_origin(field.annotation) in _JSON:
        return _JSON[get_origin(field.annotation)]
    return "path" if Path in (field.annotation, *get_args(field.annotation)) else "text"
