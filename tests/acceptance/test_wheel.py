"""The package as users install it: built into a wheel, in an empty environment, from another folder."""

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from PIL import Image

from support.diffuserve_process import serving

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "diffuserve"
FIRST_STEPS = (ROOT / "docs" / "install.md").read_text("utf-8")
INSTALL_SECONDS = 840.0  # most of it for torch

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", folder, ROOT], check=True, timeout=INSTALL_SECONDS
    )
    [built] = folder.glob("*.whl")
    return built


def test_a_wheel_holds_every_file_of_the_package_with_plain_weights_and_nothing_else(wheel: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "."], cwd=PACKAGE, capture_output=True, text=True, check=True)
    unpacked = {name.replace("/packed/", "/").removesuffix(".xz") for name in listed.stdout.splitlines()}
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == {f"diffuserve/{name}" for name in unpacked}
    models = ("tiny-flux", "tiny-sd", "tiny-video")
    indexes = {f"diffuserve/models/bundled/{name}/model_index.json" for name in models}
    page = {f"diffuserve/web/static/{name}" for name in ("index.html", "main.js", "vendor/LICENSES.txt")}
    assert indexes | page | {"diffuserve/py.typed"} <= held


@pytest.fixture(scope="module")
def empty_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("venv") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return folder


def install(environment: Path, requirement: str) -> None:
    constraints = ROOT / "constraints.txt"
    pip = [str(environment / "bin" / "pip"), "install", "--quiet", "--constraint", str(constraints)]
    subprocess.run([*pip, requirement], check=True, timeout=INSTALL_SECONDS)


def run(program: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(program), *arguments],
        cwd=cwd,
        env=clean_environment(cwd),
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS,
        check=False,
    )


def clean_environment(folder: Path) -> dict[str, str]:
    """Return an environment in which nothing leads to this checkout."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DIFFUSERVE"))
    }
    return {**kept, "DIFFUSERVE_CACHE_DIR": str(folder / "cache")}


def test_the_installed_package_draws(wheel: Path, empty_environment: Path, tmp_path: Path) -> None:
    """Install the base, which draws nothing and says what is missing; then the engine, which draws."""
    program = empty_environment / "bin" / "diffuserve"
    install(empty_environment, str(wheel))
    assert run(program, "--version", cwd=tmp_path).returncode == 0
    refused = run(program, "generate", "a red circle", cwd=tmp_path)
    assert refused.returncode == 2
    assert "pip install 'diffuserve[engine]'" in " ".join(refused.stderr.split())

    install(empty_environment, f"{wheel}[engine]")
    for name in ("transformers", "diffusers", "accelerate"):
        assert not list(empty_environment.glob(f"lib/*/site-packages/{name}"))
    [package] = empty_environment.glob("lib/*/site-packages/diffuserve")
    assert list(package.glob("__pycache__/version.*.pyc")), "pip compiles what it installs"
    done = run(program, "generate", "a red circle", "-o", "circle.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with Image.open(tmp_path / "circle.png") as image:
        assert image.size == (128, 128)
    paste_the_first_steps(program, tmp_path)


def paste_the_first_steps(program: Path, folder: Path) -> None:
    """Run every block of the documented first steps with the installed program, beside its server."""
    section = FIRST_STEPS.partition("\n## First images\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```(bash|python)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert {kind for kind, _ in blocks} == {"bash", "python"}
    environment = clean_environment(folder) | {"DIFFUSERVE_DATA_DIR": str(folder / "data")}
    with serving(environment=environment, log=folder / "server.log", program=program) as address:
        environment["DIFFUSERVE_SERVER"] = address
        environment["PATH"] = f"{program.parent}{os.pathsep}{environment['PATH']}"
        for kind, block in blocks:
            if block.strip() == "diffuserve serve":
                continue
            paste(kind, block.replace("http://127.0.0.1:8000", address), environment, folder)


def paste(kind: str, block: str, environment: Mapping[str, str], folder: Path) -> None:
    command = ["bash", "-euo", "pipefail", "-c", block] if kind == "bash" else ["python", "-c", block]
    subprocess.run(command, cwd=folder, env=dict(environment), check=True, timeout=INSTALL_SECONDS)
