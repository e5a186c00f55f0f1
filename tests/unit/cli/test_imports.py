"""Modules that a start may not import: each would cost every start of a command."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

# Run commands in turn to their ends, and print those modules of the second argument that one has imported.
_PROGRAM = """
import json, sys
from diffuserve.cli.main import main
commands, unwanted = map(json.loads, sys.argv[1:])
codes = []
for arguments in commands:
    sys.argv = ["diffuserve", *arguments]
    try:
        main()
    except SystemExit as stop:
        codes.append(stop.code)
print(json.dumps([codes, [name for name in unwanted if name in sys.modules]]))
"""
_COMPILERS = ("torch._dynamo", "torch._inductor", "sympy")
_LIBRARIES = ("diffusers", "transformers", "accelerate", "torchvision", "pandas", "scipy")
_SERVER = ("fastapi", "uvicorn", "sqlalchemy", "httpx", "redis", "obstore")


def unwanted_of(folder: Path, commands: Sequence[Sequence[str]], unwanted: Sequence[str]) -> list[str]:
    """Run commands that succeed, and return those of the unwanted modules that one has imported."""
    command = [sys.executable, "-c", _PROGRAM, json.dumps(commands), json.dumps(unwanted)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    codes, imported = json.loads(done.stdout.splitlines()[-1])
    assert codes == [0] * len(commands), done.stderr
    assert isinstance(imported, list)
    return imported


def test_generating_an_image_imports_no_compiler_and_no_other_library_of_models(tmp_path: Path) -> None:
    arguments = ("generate", "a red circle", "--size", "64x64", "--steps", "1", "--seed", "7")
    assert unwanted_of(tmp_path, [arguments], (*_COMPILERS, *_LIBRARIES, *_SERVER)) == []
    assert (tmp_path / "out/a-red-circle-7.png").is_file()


def test_help_imports_neither_torch_nor_what_a_server_needs(tmp_path: Path) -> None:
    helps = [(command, "--help") for command in ("generate", "serve", "submit", "worker", "api")]
    assert unwanted_of(tmp_path, helps, ("torch", "numpy", "PIL", *_SERVER)) == []


@pytest.mark.slow  # `generate` imports the engine, too
def test_the_engine_is_imported_without_other_libraries_of_models() -> None:
    code = "import sys; from diffuserve import Engine; print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {*_COMPILERS, *_LIBRARIES, *_SERVER, "onnxruntime"} & set(told.stdout.split())
