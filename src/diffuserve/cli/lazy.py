"""Commands that are imported when they run: `diffuserve api` starts without the modules of the others."""

from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from diffuserve.cli.foreign_options import explain
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.extras import Extra, missing_module

MARKUP: Final = "markdown"


@dataclass(frozen=True)
class LazyCommand:
    """A function of `module` that is a command, or a `typer.Typer` of it with commands of its own.

    The overview shows `summary` under the heading `panel`, which needs no import. `attribute` is the name in
    the module where it is not that of the command. The module's `EXAMPLES` end the help of a function.
    `extra` is what is to be installed for it beside the base of the package, if anything is.
    """

    name: str
    module: str
    summary: str
    panel: str = ""
    attribute: str = ""
    needs_arguments: bool = False
    hidden: bool = False
    extra: Extra | None = None

    @property
    def outline(self) -> TyperCommand:
        """The command as the overview and the completion of shells show it."""
        return TyperCommand(
            self.name, short_help=self.summary, hidden=self.hidden, rich_help_panel=self.panel or None
        )

    def load(self) -> Any:
        """Import the module and return the command as Typer's own kind of object. Raise `InvalidParams`."""
        self._check_installed()
        module = import_module(self.module)
        target: typer.Typer | Callable[..., None] = getattr(module, self.attribute or self.name)
        holder = typer.Typer(rich_markup_mode=MARKUP)
        if isinstance(target, typer.Typer):
            holder.add_typer(target)
        else:
            epilog = getattr(module, "EXAMPLES", None)
            holder.command(self.name, epilog=epilog, no_args_is_help=self.needs_arguments)(target)
        return typer.main.get_group(holder).commands[self.name]

    def _check_installed(self) -> None:
        """Refuse a command whose imports would fail; what an engine needs beyond, preflight checks."""
        if self.extra is not None and (module := missing_module(Extra.SERVER)) is not None:
            remedy = f"needs {module}, which is not installed; {self.extra.remedy}"
            raise InvalidParams("command", self.name, remedy)


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
    outlines = {command.name: command.outline for command in commands}

    class LazyGroup(TyperGroup):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.commands = _Loaded({command.name: command for command in commands})

        def list_commands(self, ctx: Any) -> list[str]:
            return list(self.commands)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            """Return the outline of a command, which is all that the overview and completion ask for."""
            return outlines.get(cmd_name)

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            """Return the command itself, which is about to run or to be asked for its options."""
            name, outline, rest = super().resolve_command(ctx, args)
            return name, outline and self.commands[str(name)], rest

        def invoke(self, ctx: Any) -> Any:
            """Run the command; an unknown option is answered with ours, if it means one elsewhere."""
            try:
                return super().invoke(ctx)
            except Exception as error:
                explain(error)
                raise

    return LazyGroup
