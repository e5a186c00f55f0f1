"""The systemd units start commands that there are, with settings that there are."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from diffuserve.agent.config import WorkerConfig
from diffuserve.cli.main import app
from diffuserve.settings import Settings

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
PROGRAM = "/opt/diffuserve/bin/diffuserve"
HARDENING = {
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "",
    "ProtectSystem": "strict",
    "UMask": "0077",
}


def values(unit: Path, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", unit.read_text("utf-8"), re.MULTILINE)


def test_there_is_a_unit_for_each_server() -> None:
    commands = {shlex.split(command)[1] for unit in UNITS for command in values(unit, "ExecStart")}
    assert commands == {"serve", "api", "worker"}


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_the_command_line_is_valid(unit: Path) -> None:
    [command] = values(unit, "ExecStart")
    program, name, *arguments = shlex.split(command)
    assert program == PROGRAM
    group: Any = typer.main.get_command(app)
    group.commands[name].make_context(name, arguments)  # raises for an unknown option


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_the_settings_exist(unit: Path) -> None:
    [environment] = values(unit, "Environment")
    names = [word.partition("=")[0] for word in shlex.split(environment)]
    settings = [name for name in names if name.startswith("DIFFUSERVE_")]
    assert settings
    assert {name.removeprefix("DIFFUSERVE_").lower() for name in settings} <= set(Settings.model_fields)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_may_write_to_its_own_folders_alone(unit: Path) -> None:
    assert {name: values(unit, name) for name in HARDENING} == {
        name: [value] for name, value in HARDENING.items()
    }
    assert values(unit, "ReadWritePaths") == []
    assert values(unit, "StateDirectoryMode") == ["0700"]


def test_a_stopping_unit_has_time_to_drain() -> None:
    for unit in UNITS:
        if values(unit, "ExecStart") != [f"{PROGRAM} api"]:
            [seconds] = values(unit, "TimeoutStopSec")
            assert float(seconds) >= WorkerConfig(server="").drain_seconds + 30
