"""Modules that a start may not import: each would cost every start of a command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

# Run a command to its end, and print those modules of the second argument that it has imported.
_PROGRAM = """
import json, sys
from diffuserve.cli.main import main
unwanted, sys.argv = json.loads(sys.argv[2]), ["diffuserve", *json.loads(sys.argv[1])]
try:
    main()
except SystemExit as stop:
    print(json.dumps([stop.code, [name for name in unwanted if name in sys.modules]]))
"""
_COMPILERS = ("torch._dynamo", "torch._inductor", "sympy")
_LIBRARIES = ("diffusers", "transformers", "accelerate", "torchvision", "pandas", "scipy")
_SERVER = ("fastapi", "uvicorn", "sqlalchemy", "httpx", "redis", "obstore")


def unwanted_of(folder: Path, arguments: tuple[str, ...], unwanted: tuple[str, ...]) -> list[str]:
    """Run a command that succeeds, and return those of the unwanted modules that it has imported."""
    command = [sys.executable, "-c", _PROGRAM, json.dumps(arguments), json.dumps(unwanted)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    code, imported = json.loads(done.stdout.splitlines()[-1])
    assert code == 0, done.stderr
    assert isinstance(imported, list)
    return imported


def test_generating_an_image_imports_no_compiler_and_no_other_library_of_models(tmp_path: Path) -> None:
    arguments = ("generate", "a red circle", "--size", "64x64", "--steps", "1", "--seed", "7")
    assert unwanted_of(tmp_path, arguments, (*_COMPILERS, *_LIBRARIES, *_SERVER)) == []
    assert (tmp_path / "out/a-red-circle-7.png").is_file()


@pytest.mark.parametrize("command", ["generate", "serve", "submit", "worker", "api"])
def test_help_imports_neither_torch_nor_what_a_server_needs(command: str, tmp_path: Path) -> None:
    assert unwanted_of(tmp_path, (command, "--help"), ("torch", "numpy", "PIL", *_SERVER)) == []


def test_the_engine_is_imported_without_other_libraries_of_models() -> None:
    code = "import sys; from diffuserve import Engine; print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {*_COMPILERS, *_LIBRARIES, *_SERVER, "onnxruntime"} & set(told.stdout.split())
