"""Commands that are imported when they run: `diffuserve api` starts without the modules of the others."""

from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperGroup

MARKUP: Final = "markdown"


@dataclass(frozen=True)
class LazyCommand:
    """A function of `module` that is a command, or a `typer.Typer` of it with commands of its own.

    The module's `EXAMPLES` end the help of a function.
    """

    module: str
    name: str
    needs_arguments: bool = False

    def load(self) -> Any:
        """Import the module and return the command as Typer's own kind of object."""
        module = import_module(self.module)
        target: typer.Typer | Callable[..., None] = getattr(module, self.name)
        holder = typer.Typer(rich_markup_mode=MARKUP)
        if isinstance(target, typer.Typer):
            holder.add_typer(target)
        else:
            epilog = getattr(module, "EXAMPLES", None)
            holder.command(self.name, epilog=epilog, no_args_is_help=self.needs_arguments)(target)
        return typer.main.get_group(holder).commands[self.name]


class _Loaded(MutableMapping[str, Any]):
    """Commands by name; looking one up imports it, and going through the names imports none."""

    def __init__(self, commands: dict[str, LazyCommand]) -> None:
        self._commands: dict[str, Any] = dict(commands)

    def __getitem__(self, name: str) -> Any:
        command = self._commands[name]
        if isinstance(command, LazyCommand):
            command = self._commands[name] = command.load()
        return command

    def __setitem__(self, name: str, command: Any) -> None:
        self._commands[name] = command

    def __delitem__(self, name: str) -> None:
        del self._commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._commands)

    def __len__(self) -> int:
        return len(self._commands)


def lazy_group(*commands: LazyCommand) -> type[TyperGroup]:
    """Return a group with these commands, for `typer.Typer(cls=...)`."""

    class LazyGroup(TyperGroup):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.commands = _Loaded({command.name: command for command in commands})

        def list_commands(self, ctx: Any) -> list[str]:
            return list(self.commands)

    return LazyGroup
