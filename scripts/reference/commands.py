"""Tables of the commands, and of the options of each by the panels of its help."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, get_args

import typer.main

from diffuserve.cli.commands import COMMANDS
from diffuserve.cli.main import app
from diffuserve.cli.options import settings_of
from diffuserve.setting_errors import variable_of
from diffuserve.settings import Settings
from reference.markdown import code, prose, table
from reference.settings import default_of

_FEW = 6
"""Options that stand in one table, whatever their panels."""
_MANY = 10
"""Commands that must take an option alike for it to be told once."""
_LIKE: Mapping[str, str] = {"fleet ray": "worker", "fleet slurm": "worker"}
"""Commands that take the options of another one for what they start, which has them in its own tables."""
_DEFAULT = re.compile(r"\s*\[default: (?P<told>[^\]]*)\]|; by default (?P<said>[^.;]*)\.?$")
_HEADINGS = ("option", "default", "meaning")
_OTHERS = "Options"
Row = tuple[str, str, str]


def regions() -> Mapping[str, str]:
    """Return the overview, the options of many commands, and those of each, under the words that start it."""
    found = {name: _options(command) for name, command in _commands("", typer.main.get_command(app))}
    options = {name: _without(panels, found.get(_LIKE.get(name, ""), {})) for name, panels in found.items()}
    times = Counter(row for panels in options.values() for rows in panels.values() for row in rows)
    shared = [row for row, count in times.items() if count >= _MANY]
    own = {name: _told(panels, shared) + _alike(name) for name, panels in options.items() if panels}
    return {"commands": _overview(), "options of many commands": table(_HEADINGS, shared), **own}


def _overview() -> str:
    return table(
        ("command", "for", "what it does"),
        ((code(f"diffuserve {command.name}"), command.panel, prose(command.summary)) for command in COMMANDS),
    )


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield every command and group by the words that start it."""
    yield name or "diffuserve", command
    for inner, subcommand in getattr(command, "commands", {}).items():
        yield from _commands(f"{name} {inner}".strip(), subcommand)


def _options(command: Any) -> Mapping[str, list[Row]]:
    """Return a command's options by panel in the order of the help, which shows those without one first."""
    shown = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
    settings = settings_of(command.callback)
    found: dict[str, list[Row]] = {_OTHERS: []}
    for option in shown:
        panel = getattr(option, "rich_help_panel", None) or _OTHERS
        found.setdefault(panel, []).append(_row(option, option.name in settings))
    return {panel: rows for panel, rows in found.items() if rows}


def _without(panels: Mapping[str, list[Row]], others: Mapping[str, list[Row]]) -> Mapping[str, list[Row]]:
    known = {row for rows in others.values() for row in rows}
    return {panel: [row for row in rows if row not in known] for panel, rows in panels.items()}


def _alike(name: str) -> str:
    """Refer to the command whose options this one takes as well, if there is one."""
    if (other := _LIKE.get(name)) is None:
        return ""
    return f"\nAnd the settings among the options of [`diffuserve {other}`](#diffuserve-{other}).\n"


def _told(panels: Mapping[str, list[Row]], shared: Sequence[Row]) -> str:
    """Return the tables of a command's own options, and the names of those that many commands take."""
    own = {panel: [row for row in rows if row not in shared] for panel, rows in panels.items()}
    others = [row[0].partition("<br>")[0] for rows in panels.values() for row in rows if row in shared]
    also = f"{', '.join(others)}: see [options of many commands](#options-of-many-commands).\n"
    return "\n".join([*_tables(own), *([also] if others else [])])


def _tables(panels: Mapping[str, list[Row]]) -> Iterator[str]:
    """Yield a table for each panel, or one for few options."""
    if sum(map(len, panels.values())) <= _FEW:
        panels = {"": [row for rows in panels.values() for row in rows]}
    for panel, rows in panels.items():
        if rows:
            yield (f"**{panel}**\n\n" if panel else "") + table(_HEADINGS, rows)


def _row(option: Any, is_setting: bool) -> Row:
    flags = ", ".join(map(code, (*option.opts, *option.secondary_opts)))
    told = _DEFAULT.search(option.help)
    meaning = prose(_DEFAULT.sub("", option.help))
    if is_setting:
        variable = code(variable_of(option.name))
        return f"{flags}<br>{variable}", default_of(Settings.model_fields[option.name]), meaning
    meaning += _bounds(option)
    return flags, prose(told["told"] or told["said"]) if told else _own_default(option.default), meaning


def _own_default(default: Any) -> str:
    """Return the cell of a default that the help leaves to the command line's library."""
    value = getattr(default, "value", default)
    return "" if value in (None, False, "") else code(f"{value:.15g}" if isinstance(value, float) else value)


def _bounds(option: Any) -> str:
    """Say what values an option takes, where that is declared and not told."""
    for kind in (option.type_descriptor.annotation, *get_args(option.type_descriptor.annotation)):
        if isinstance(kind, type) and issubclass(kind, Enum):
            return f": {', '.join(code(member.value) for member in kind)}"
    if option.max is None:
        return "" if option.min in (None, 0, 1) else f"; at least {option.min:g}"
    return f"; {option.min:g} to {option.max:g}"
