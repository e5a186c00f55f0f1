"""The files for SkyPilot and dstack are as their parsers want them; their options and settings exist.

Nothing of them was ever started on a cloud.
"""

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from diffuserve.cli.main import app
from diffuserve.settings import Settings
from support.environments import environment

DEPLOY = Path(__file__).parents[2] / "deploy"
SKYPILOT = sorted((DEPLOY / "skypilot").glob("*.yaml"))
DSTACK = sorted((DEPLOY / "dstack").glob("*.yml"))

PARSED_BY_SKYPILOT = """
import sys
import sky
for path in sys.argv[1:]:
    task = sky.Task.from_yaml(path)
    spots = [resources.use_spot for resources in task.resources]
    print(len(spots), all(spots), task.service is not None)
"""
PARSED_BY_DSTACK = """
import sys
import yaml
from dstack._internal.core.models.configurations import parse_apply_configuration
for path in sys.argv[1:]:
    print(parse_apply_configuration(yaml.safe_load(open(path))).type)
"""


def content(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text("utf-8"))


def command_in(script: str, name: str) -> list[str]:
    """Return the words after `diffuserve` of a script's command, without its optional ones."""
    text = re.sub(r"\$\{[^}]*\}", "", script.replace("\\\n", " "))
    [line] = [line for line in text.splitlines() if f"diffuserve {name}" in line]
    words = shlex.split(line.partition("||")[0])
    return words[words.index(name) + 1 :]


def variables() -> set[str]:
    skypilot = [content(f"skypilot/{name}.yaml") for name in ("worker", "service")]
    named = [name for file in skypilot for group in ("envs", "secrets") for name in file[group]]
    return {*named, *(item.partition("=")[0] for item in content("dstack/worker.dstack.yml")["env"])}


def test_settings_exist() -> None:
    ours = {
        name.removeprefix("DIFFUSERVE_").lower() for name in variables() if name.startswith("DIFFUSERVE_")
    }
    known = {*Settings.model_fields, "server", "api_key"}
    assert ours
    assert ours <= known


def test_secrets_come_from_whoever_starts_it() -> None:
    for name in ("worker", "service"):
        assert set(content(f"skypilot/{name}.yaml")["secrets"].values()) == {None}
    assert "DIFFUSERVE_API_KEY" in content("dstack/worker.dstack.yml")["env"]


def test_commands_are_valid() -> None:
    group: Any = typer.main.get_command(app)
    tasks = {"skypilot": content("skypilot/worker.yaml")["run"]}
    tasks["dstack"] = "\n".join(content("dstack/worker.dstack.yml")["commands"])
    for script in tasks.values():
        # It raises for an unknown option.
        options = group.commands["worker"].make_context("worker", command_in(script, "worker")).params
        assert options["spot"] == "auto"
    service = command_in(content("skypilot/service.yaml")["run"], "api")
    group.commands["api"].make_context("api", service)


@pytest.mark.parametrize(
    ("worker_ends", "leave_when_idle", "expected"),
    [
        pytest.param(0, "", 75, id="a notice is no end"),
        pytest.param(0, "300", 0, id="one that left is not started again"),
        pytest.param(2, "", 2, id="a refusal is an error"),
        pytest.param(2, "300", 2, id="of one that may leave too"),
    ],
)
def test_how_a_worker_ends_for_skypilot(
    tmp_path: Path, worker_ends: int, leave_when_idle: str, expected: int
) -> None:
    programs = tmp_path / "diffuserve" / "bin"
    programs.mkdir(parents=True)
    for name, script in {
        "diffuserve": f'echo "$@" >> {tmp_path}/arguments; exit {worker_ends}',
        "sleep": f"echo sleep $1 >> {tmp_path}/arguments",
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    environ = {
        **os.environ,
        "HOME": str(tmp_path),
        "LEAVE_WHEN_IDLE": leave_when_idle,
        "SKYPILOT_TASK_ID": "t-1",
    }
    run = content("skypilot/worker.yaml")["run"]
    assert subprocess.run(["bash", "-c", run], env=environ, check=False).returncode == expected
    arguments = (tmp_path / "arguments").read_text().splitlines()
    assert ("--leave-when-idle 300" in arguments[0]) == bool(leave_when_idle)
    assert (arguments[1:] == ["sleep 150"]) == (expected == 0)


def test_the_exit_code_is_the_one_that_skypilot_starts_again() -> None:
    recovery = content("skypilot/worker.yaml")["resources"]["job_recovery"]
    assert recovery["recover_on_exit_codes"] == [75]


def parsed(program: str, python: Path, home: Path, paths: list[Path]) -> subprocess.CompletedProcess[str]:
    environ = {"HOME": str(home), "PATH": os.environ["PATH"], "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    command = [str(python), "-c", program, *map(str, paths)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_skypilot_reads_them(tmp_path: Path) -> None:
    python = environment("skypilot", ["skypilot==0.14.1"], sees_project=False) / "bin" / "python"
    done = parsed(PARSED_BY_SKYPILOT, python, tmp_path, SKYPILOT)
    assert done.stdout.splitlines()[-2:] == ["1 False True", "3 True False"], done.stderr
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(SKYPILOT[1].read_text("utf-8").replace("use_spot", "use_spots"))
    assert "use_spots" in parsed(PARSED_BY_SKYPILOT, python, tmp_path, [wrong]).stderr


@pytest.mark.slow
def test_dstack_reads_them(tmp_path: Path) -> None:
    python = environment("dstack", ["dstack==0.22.5"], sees_project=False) / "bin" / "python"
    done = parsed(PARSED_BY_DSTACK, python, tmp_path, DSTACK)
    assert done.stdout.split() == ["fleet", "task"], done.stderr
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(DSTACK[1].read_text("utf-8").replace("spot_policy", "spot_policies"))
    assert "spot_policies" in parsed(PARSED_BY_DSTACK, python, tmp_path, [wrong]).stderr
