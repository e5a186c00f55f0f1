"""The files of containers are as their tools want them, and what they name exists."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from diffuserve.cli.main import app
from diffuserve.settings import Settings

FOLDER = Path(__file__).parents[2] / "deploy" / "docker"
DOCKERFILES = sorted(FOLDER.glob("Dockerfile.*[!e]"))
PROGRAMS = Path(sys.executable).parent


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text("utf-8"))
    return loaded


def settings_in(text: str) -> set[str]:
    return {name.lower() for name in re.findall(r"\bDIFFUSERVE_([A-Z_]+)[=:]", text)}


def test_hadolint_has_no_objection() -> None:
    assert [path.name for path in DOCKERFILES] == ["Dockerfile.control", "Dockerfile.worker"]
    command = [str(PROGRAMS / "hadolint"), *map(str, DOCKERFILES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_compose_is_valid() -> None:
    command = [str(PROGRAMS / "check-jsonschema"), "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run(
        [*command, str(FOLDER / "compose.yaml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", [*DOCKERFILES, FOLDER / "compose.yaml"], ids=lambda path: path.name)
def test_settings_exist(path: Path) -> None:
    names = settings_in(path.read_text("utf-8"))
    assert names
    assert names <= set(Settings.model_fields)


def test_commands_are_valid() -> None:
    group: Any = typer.main.get_command(app)
    metrics = ["--metrics-host", "0.0.0.0", "--metrics-port", "9100"]
    worker = [*metrics, *compose()["services"]["worker"]["command"]]
    group.commands["worker"].make_context("worker", worker)  # raises for an unknown option
    group.commands["api"].make_context("api", [])
    entry = json.dumps(["diffuserve", "worker", *metrics])
    assert f"ENTRYPOINT {entry}" in (FOLDER / "Dockerfile.worker").read_text()


def test_files_that_compose_mounts_exist_and_ports_are_of_this_machine_alone() -> None:
    services = compose()["services"].values()
    mounts = [mount for service in services for mount in service.get("volumes", ()) if mount.startswith(".")]
    assert len(mounts) >= 4
    for mount in mounts:
        assert (FOLDER / mount.split(":")[0]).exists(), mount
    ports = [port for service in services for port in service.get("ports", ())]
    assert len(ports) >= 4
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_images_run_as_a_user_without_a_name_and_hold_what_they_are_built_of() -> None:
    for path in DOCKERFILES:
        assert re.search(r"^USER 10001$", path.read_text("utf-8"), re.MULTILINE), path.name
        assert "*\n!pyproject.toml" in Path(f"{path}.dockerignore").read_text("utf-8")
