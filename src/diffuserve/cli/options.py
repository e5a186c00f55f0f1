"""Options of the commands.

Most options are settings given on the command line: `takes_settings` derives them from `Settings`, so
that name, type, help and default are declared there alone. Those of a request derive from its fields
(`request_options`). The others are written out here, or with the only command that has them.
"""

import inspect
import json
import re
from collections.abc import Callable, Mapping
from functools import wraps
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from diffuserve.agent.config import WorkerConfig
from diffuserve.cli.adapter_files import adapter_files
from diffuserve.cli.completion import model_names
from diffuserve.cli.panels import PANELS, SAFETY, place_of
from diffuserve.domain.errors import InvalidParams
from diffuserve.modelstore.config import ModelStoreConfig
from diffuserve.options import option_fields
from diffuserve.settings import Settings
from diffuserve.telemetry.log_config import LogConfig
from diffuserve.telemetry.tracing_config import TracingConfig

_COMPLETIONS = {"model": model_names}
_METAVARS: Final = {"adapter_files": "FILE|NAME=FILE|JSON"}
WORKER_OPTIONS = tuple(option_fields(WorkerConfig))
WORKER_SETTINGS = (*WORKER_OPTIONS, "more_models")
MODEL_STORE_OPTIONS = tuple(option_fields(ModelStoreConfig))
LOCAL_STORE_OPTIONS = tuple(name for name in MODEL_STORE_OPTIONS if not name.startswith("adapter_"))
"""Those of a command without a server, which knows adapters by their files alone."""
LOG_OPTIONS = tuple(option_fields(LogConfig))
TRACE_OPTIONS = tuple(option_fields(TracingConfig))
_CHOSEN = "; by default "  # begins the part of a description that names the default
_REPEATED = " Repeat it for a worker of several."
_FLAGS = {
    "api_key": "--key",
    "api_key_file": "--key-file",
    "file_metadata": "--metadata/--no-metadata",
    "model_aliases": "--alias",
}
_OTHER_FLAGS = {"quantization": ("--quantize",)}
"""Further spellings of options, as other programs have them; help shows them behind the first."""

NoAuth = Annotated[
    bool,
    typer.Option(
        "--no-auth",
        help="Accept requests without an API key, even if keys exist; without keys, the only way to listen "
        "elsewhere than on loopback. [default: off]",
        rich_help_panel=SAFETY,
    ),
]
EngineCommand = Annotated[str | None, typer.Option(hidden=True, help="Start this as the engine instead.")]
Open = Annotated[bool, typer.Option("--open", help="Open the images or clips with this machine's viewer.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def parse_size(text: str | None) -> tuple[int | None, int | None]:
    """Return width and height of `128x96`, in pixels; `128` is a square. Raise `typer.BadParameter`."""
    if text is None:
        return None, None
    match = re.fullmatch(r"(-?\d+)(?:\s*[xX×]\s*(-?\d+))?", text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is not WIDTHxHEIGHT; for example --size 128x96")
    return int(match[1]), int(match[2] or match[1])


_FURTHER: Final = {"more_models": "model"}
"""Settings that have what an option is given after its first value, in commands that take both."""


def takes_settings(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each setting named.

    The command receives, as its first argument, the settings with what was given on the command line.
    """
    further = {name: _FURTHER[name] for name in names if name in _FURTHER}
    single = sorted((name for name in names if name not in further), key=place_of)
    options = [_parameter(name, Settings.model_fields[name], name in further.values()) for name in single]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**arguments: Any) -> None:
            given = {name: arguments.pop(name) for name in single}
            for more, name in further.items():
                if values := given[name]:
                    given[name], given[more] = values[0], tuple(values[1:])
            command(Settings.with_options(**given), **arguments)

        [_settings, *own] = inspect.signature(command).parameters.values()
        named = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
        set_signature(run, [*options, *named])  # panels appear in the order of their first options
        vars(run)["settings"] = frozenset(single)
        return run

    return decorate


def settings_of(command: Callable[..., Any] | None) -> frozenset[str]:
    """Return the settings that `takes_settings` gave a command as options."""
    found: frozenset[str] = getattr(command, "settings", frozenset())
    return found


def arguments_for(settings: Settings, *names: str) -> list[str]:
    """Return the command-line arguments that give another command the same settings."""
    return [word for name in names for word in _argument(name, getattr(settings, name))]


def flag_of(name: str) -> str:
    """Return how the option of a setting is spelled; `--on/--off` for a boolean."""
    name = _FURTHER.get(name, name)
    flag = f"--{name.replace('_', '-')}"
    is_boolean = _type_of(Settings.model_fields[name]) is bool
    return _FLAGS.get(name, f"{flag}/--no-{flag[2:]}" if is_boolean else flag)


def _argument(name: str, value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, bool):
        on, off = flag_of(name).split("/")
        return [on if value else off]
    if isinstance(value, tuple):
        return [word for item in value for word in (flag_of(name), str(item))]
    return [flag_of(name), json.dumps(dict(value)) if isinstance(value, Mapping) else str(value)]


def set_signature(command: Any, parameters: list[inspect.Parameter]) -> None:
    """Give a command these parameters; typer reads its options from its signature and its annotations."""
    command.__signature__ = inspect.Signature(parameters)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


def _parameter(name: str, field: FieldInfo, may_be_repeated: bool) -> inspect.Parameter:
    kind: Any = _type_of(field)
    is_mapping = kind is dict
    annotation = (list[kind] if may_be_repeated else kind) | None
    option = typer.Option(
        flag_of(name),
        *_OTHER_FLAGS.get(name, ()),
        help=_help(field) + (_REPEATED if may_be_repeated else ""),
        parser=_PARSERS.get(name, _mapping) if is_mapping else None,
        metavar=_METAVARS.get(name, "JSON") if is_mapping else None,
        autocompletion=_COMPLETIONS.get(name),
        rich_help_panel=PANELS.get(name),
        show_default=False,
        case_sensitive=False,
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[annotation, option],
    )


def _mapping(text: str) -> Any:
    """Return what JSON says, or the pairs of `NAME=VALUE,NAME=VALUE`. Raise `typer.BadParameter`."""
    try:
        if text.lstrip().startswith("{") or "=" not in text:
            return json.loads(text)
        return dict(pair.strip().split("=", 1) for pair in text.split(","))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is neither NAME=VALUE,NAME=VALUE nor JSON: {error}") from None


def _adapter_files(text: str) -> Any:
    """Return files of adapters by name, as `adapter_files` reads them. Raise `typer.BadParameter`."""
    try:
        return adapter_files(text)
    except InvalidParams as error:
        raise typer.BadParameter(f"{error.value}: {error.remedy}") from None
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no JSON: {error}") from None


_PARSERS: Final = {"adapter_files": _adapter_files}


def _type_of(field: FieldInfo) -> Any:
    """Return the type that typer parses: without `None`, and `dict` for any mapping."""
    annotation: Any = field.annotation
    if get_origin(annotation) in (Union, UnionType):
        [annotation] = [kind for kind in get_args(annotation) if kind is not type(None)]
    return dict if get_origin(annotation) is Mapping else annotation


def described(field: FieldInfo) -> tuple[str, str]:
    """Return a setting's description, and the default in words where it is chosen at run time, else ""."""
    text, _, chosen = str(field.description).removesuffix(".").partition(_CHOSEN)
    return f"{text}.", chosen


def _help(field: FieldInfo) -> str:
    """Return the description with the default at its end."""
    text, chosen = described(field)
    return f"{text} [default: {chosen or _words(field.get_default(call_default_factory=True))}]"


def _words(default: Any) -> str:
    """Return a default as a person would write it."""
    if default in (None, {}, ()):
        return "none"
    if isinstance(default, bool):
        return "on" if default else "off"
    return f"{default:g}" if isinstance(default, float) else str(default)
