"""The package without extras: a client's commands run, and the others say what to install."""

import json
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.utils import canonicalize_name

from diffuserve.cli.commands import COMMANDS
from diffuserve.domain import extras
from diffuserve.domain.extras import Extra
from support.command import Invoke
from support.requirements import closure

PROJECT: dict[str, Any] = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text("utf-8"))[
    "project"
]
# Run commands in turn where modules of the second argument are not found; print how each ended.
_PROGRAM = """
import contextlib, importlib.machinery, io, json, sys
found, missing = importlib.machinery.PathFinder.find_spec, {*json.loads(sys.argv[2])}
def find_spec(name, path=None, target=None):
    return None if name in missing else found(name, path, target)
importlib.machinery.PathFinder.find_spec = find_spec
from diffuserve.cli.main import main
ends = []
for arguments in json.loads(sys.argv[1]):
    sys.argv, errors = ["diffuserve", *arguments], io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        try:
            main()
        except SystemExit as stop:
            ends.append([stop.code, errors.getvalue()])
print(json.dumps(ends))
"""


def ends_of(*commands: tuple[str, ...]) -> list[tuple[int, str]]:
    """Run commands in a process that has what the base install has; return their exit codes and errors."""
    base = {*closure(PROJECT["dependencies"]), "diffuserve"}
    missing = [
        module
        for module, owners in packages_distributions().items()
        if not base & {canonicalize_name(owner) for owner in owners}
    ]
    program = [sys.executable, "-c", _PROGRAM, json.dumps(commands), json.dumps(missing)]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    return [(code, errors) for code, errors in json.loads(done.stdout.splitlines()[-1])]


def test_clients_commands_run_and_the_others_name_their_extra(tmp_path: Path) -> None:
    ends = ends_of(*((command.name, "--help") for command in COMMANDS))
    for command, (code, errors) in zip(COMMANDS, ends, strict=True):
        if command.extra is None:
            assert (code, errors) == (0, ""), command.name
        else:
            assert code == 2, command.name
            assert f"pip install 'diffuserve[{command.extra}]'" in " ".join(errors.split())


def test_a_client_alone_neither_converts_images_nor_shows_previews(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda _name: None)
    for options in (("-o", str(tmp_path / "star.webp")), ("--preview",)):
        refused = invoke("submit", "a star", *options, "--server", "http://127.0.0.1:9")
        assert refused.code == 2
        assert "pip install 'diffuserve[pictures]'" in " ".join(refused.err.split())


def test_every_extra_that_a_message_names_exists() -> None:
    assert {*Extra} <= {*PROJECT["optional-dependencies"]}
