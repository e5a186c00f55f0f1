"""Options of a worker and its engine are declared once, and reach every place where they may be given."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

import diffuserve
from diffuserve.agent.config import WorkerConfig
from diffuserve.cli.main import app
from diffuserve.cli.options import WORKER_OPTIONS, WORKER_SETTINGS, arguments_for, flag_of, takes_settings
from diffuserve.engine.config import EngineConfig
from diffuserve.options import option_fields, option_of
from diffuserve.protocol.config import EngineProcessConfig
from diffuserve.settings import Settings

SOURCES = Path(diffuserve.__file__).parent
NOT_FOR_OPERATORS = {
    "cost_fit_path",  # follows from the cache folder, the model, the device and the dtype
    "compiled_folder",  # follows from the cache folder
    "encoding",  # follows from the rank, the other two from the role
    "denoising",
    "decoding",
}
CHOSEN = {
    "model": "m",
    "device": "cuda:1",
    "dtype": "float16",
    "token_budget": 512,
    "memory_budget_bytes": 1 << 30,
    "deterministic": True,
    "memory_fraction": 0.5,
    "collective_seconds": 20.0,
    "image_filter": "none",
    "image_rules": {"nsfw": {"threshold": 0.5, "action": "blur"}},
    "file_metadata": False,
    "max_jobs": 3,
}


def engine_fields(config: Any = EngineProcessConfig) -> Iterator[str]:
    for declared in fields(config):
        if is_dataclass(declared.type):
            yield from engine_fields(declared.type)
        else:
            yield declared.name


@pytest.mark.parametrize("name", sorted(set(engine_fields()) - NOT_FOR_OPERATORS))
def test_every_field_of_the_engine_is_an_option(name: str) -> None:
    assert name in option_fields(WorkerConfig), f"declare {name} with `option`"


@pytest.mark.parametrize("name", WORKER_OPTIONS)
@pytest.mark.parametrize("command", ["worker", "serve"])
def test_every_option_is_reachable_from_both_commands(command: str, name: str) -> None:
    group: Any = typer.main.get_command(app)
    [parameter] = [parameter for parameter in group.commands[command].params if parameter.name == name]
    assert parameter.default is None, "the default is declared with the field"
    assert parameter.opts[0] == flag_of(name).split("/")[0]


@pytest.mark.parametrize("name", WORKER_OPTIONS)
def test_every_option_is_a_setting_with_the_default_of_its_field(name: str) -> None:
    setting, declared = Settings.model_fields[name], option_fields(WorkerConfig)[name]
    default = declared.default if declared.default_factory is MISSING else declared.default_factory()
    assert setting.get_default(call_default_factory=True) == default
    assert setting.description == option_of(declared).help


def test_no_option_has_a_second_default() -> None:
    """A default of the same name elsewhere in the package is a second one, unless it means "off"."""
    found = {
        f"{path.relative_to(SOURCES)}: {name} = {value!r}"
        for path in SOURCES.rglob("*.py")
        for name, value in defaults(ast.parse(path.read_text(encoding="utf-8")))
        if name in set(WORKER_OPTIONS) and value not in (None, False) and may_be(name, value)
    }
    assert found == set()


def may_be(name: str, value: object) -> bool:
    """Return whether a value is one of a worker's option of this name; other things may be named alike."""
    default = option_fields(WorkerConfig)[name].default
    return not isinstance(default, StrEnum) or value in list(type(default))


def defaults(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Yield the literal defaults of parameters and of annotated class attributes."""
    for node in ast.walk(tree):
        pairs: list[tuple[str, ast.expr | None]] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            positional = [*node.args.posonlyargs, *node.args.args]
            with_default = positional[len(positional) - len(node.args.defaults) :]
            pairs += [(arg.arg, value) for arg, value in zip(with_default, node.args.defaults, strict=True)]
            pairs += [
                (arg.arg, value)
                for arg, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            ]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            pairs.append((node.target.id, node.value))
        yield from ((name, value.value) for name, value in pairs if isinstance(value, ast.Constant))


def test_command_line_arguments_carry_every_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options of `serve` reach its worker, even if the environment of both differs."""
    chosen = Settings.with_options(**CHOSEN)
    monkeypatch.setenv("DIFFUSERVE_MAX_JOBS", "99")
    received = parsed(arguments_for(chosen, *WORKER_OPTIONS), WORKER_OPTIONS)
    assert received.worker == chosen.worker
    assert {name: getattr(received, name) for name in CHOSEN} == CHOSEN


def test_the_values_of_a_repeated_option_reach_the_worker_of_a_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DIFFUSERVE_MORE_MODELS", '["z"]')
    assert [process.model for process in parsed([], WORKER_SETTINGS).worker.engine_processes] == [
        "tiny-flux",
        "z",
    ]
    chosen = parsed(["--model", "a", "--model", "b", "--model", "c"], WORKER_SETTINGS)
    received = parsed(arguments_for(chosen, *WORKER_SETTINGS), WORKER_SETTINGS)
    assert (received.model, received.more_models) == ("a", ("b", "c"))  # type: ignore[attr-defined]
    assert parsed(["--model", "a"], WORKER_SETTINGS).more_models == ()


@pytest.mark.parametrize("text", ['{"gpt-image-2": "a", "sora-2": "b"}', "gpt-image-2=a, sora-2=b"])
def test_other_names_of_models_are_pairs_or_json(text: str) -> None:
    chosen = parsed(["--alias", text], ("model_aliases",))
    assert chosen.model_aliases == {"gpt-image-2": "a", "sora-2": "b"}  # type: ignore[attr-defined]


def test_what_is_not_given_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIFFUSERVE_TOKEN_BUDGET", "512")
    monkeypatch.setenv("DIFFUSERVE_MEMORY_FRACTION", "0.5")
    received = parsed(["--memory-fraction", "0.25"], WORKER_OPTIONS)
    assert received.engine_process.engine.token_budget == 512
    assert received.worker.memory_fraction == 0.25


def parsed(arguments: list[str], names: tuple[str, ...]) -> Settings:
    """Return the settings that a command with these options receives."""
    received: list[Settings] = []
    command = typer.Typer()

    @command.command()
    @takes_settings(*names)
    def receive(settings: Settings) -> None:
        received.append(settings)

    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return received[0]


@pytest.mark.parametrize(
    ("option", "value"), [("max_jobs", 0), ("memory_fraction", 1.5), ("token_budget", 0), ("gpus", 0)]
)
def test_values_out_of_range_are_refused(option: str, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=option):
        parsed([flag_of(option), str(value)], WORKER_OPTIONS)
    monkeypatch.setenv(f"DIFFUSERVE_{option.upper()}", str(value))
    with pytest.raises(ValueError, match=option):
        Settings()


def test_rules_that_are_not_json_are_refused() -> None:
    command = typer.Typer()
    command.command()(takes_settings("image_rules")(lambda settings: None))
    result = CliRunner().invoke(command, ["--image-rules", "nsfw"])
    assert result.exit_code == 2
    assert "--image-rules" in result.output


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("port", "[default: 8000]"),
        ("collective_seconds", "[default: 120]"),
        ("deterministic", "[default: off]"),
        ("file_metadata", "[default: on]"),
        ("data_dir", "[default: diffuserve-data]"),
        ("api_key", "[default: none]"),
        ("database_url", "postgresql://USER@HOST/NAME. [default: SQLite in the data folder]"),
        ("image_rules", "[default: the filter's own]"),
        ("device", "cpu or cuda[:n]. [default: CUDA where there is a GPU]"),
    ],
)
def test_help_shows_the_default_of_a_setting(name: str, shown: str) -> None:
    assert shown in help_of(name)


@pytest.mark.parametrize("command", ["serve", "worker", "api"])
def test_every_option_of_a_server_has_a_panel_and_shows_its_default(command: str) -> None:
    group: Any = typer.main.get_command(app)
    for parameter in group.commands[command].params:
        if parameter.hidden or parameter.name == "help":
            continue
        assert parameter.rich_help_panel, parameter.name
        is_shown = "[default: " in parameter.help or (
            parameter.show_default and parameter.default is not None
        )
        assert is_shown, parameter.name
        assert "by default" not in parameter.help, parameter.name


def test_the_panels_of_a_server_come_in_the_order_of_their_use() -> None:
    group: Any = typer.main.get_command(app)
    panels = [parameter.rich_help_panel for parameter in group.commands["serve"].params]
    order = list(dict.fromkeys(panel for panel in panels if panel))
    assert order == [
        "Model",
        "Model store",
        "Listening",
        "Storage",
        "Safety",
        "Engine",
        "Many GPUs",
        "Reliability",
        "Log and traces",
    ]


def help_of(name: str) -> str:
    command = typer.Typer()
    command.command()(takes_settings(name)(lambda settings: None))
    [parameter] = [found for found in typer.main.get_command(command).params if found.name == name]
    return str(parameter.help)  # type: ignore[attr-defined]


def test_engine_configuration_follows_from_settings(tmp_path: Path) -> None:
    settings = Settings.with_options(**CHOSEN, cache_dir=tmp_path)
    process = settings.engine_process
    assert (process.model, process.device, process.dtype) == ("m", "cuda:1", "float16")
    assert process.images.image_rules == CHOSEN["image_rules"]
    assert isinstance(process.engine, EngineConfig)
    assert process.engine.cost_fit_path is not None
    assert process.engine.cost_fit_path.is_relative_to(tmp_path)
    assert isinstance(settings.worker.labels, Mapping)
