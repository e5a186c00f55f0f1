"""The package as users install it: built into wheels, in empty environments, from another folder."""

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
MAX_CLIENT_BYTES = 65_000_000

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with what `make wheel` builds."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--outdir", str(folder)]
    for arguments in ([str(ROOT)], ["--wheel", str(PACKAGE / "models" / "bundled" / "packed")]):
        subprocess.run([*build, *arguments], check=True, timeout=INSTALL_SECONDS)
    return folder


def test_two_wheels_hold_every_file_of_the_package_with_plain_weights_and_nothing_else(wheels: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "."], cwd=PACKAGE, capture_output=True, text=True, check=True)
    tracked = [name for name in listed.stdout.splitlines() if "/packed/" not in name]
    packed = [name for name in listed.stdout.splitlines() if "/packed/" in name]
    weights = [name for name in packed if name.endswith((".xz", "/NOTICE.md"))]
    assert files_of(wheels, "diffuserve-") == {f"diffuserve/{name}" for name in tracked}
    plain = {name.replace("/packed/", "/").removesuffix(".xz") for name in weights}
    assert files_of(wheels, "diffuserve_models-") == {f"diffuserve/{name}" for name in plain}
    models = ("tiny-emoji", "tiny-flux", "tiny-sd", "tiny-video")
    indexes = {f"models/bundled/{name}/model_index.json" for name in models}
    page = {f"web/static/{name}" for name in ("index.html", "main.js", "vendor/LICENSES.txt")}
    assert indexes | page | {"py.typed"} <= {*tracked}


def files_of(wheels: Path, name: str) -> set[str]:
    [wheel] = wheels.glob(f"{name}*.whl")
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def new_environment(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return folder


def install(environment: Path, wheels: Path, extras: str = "") -> None:
    [wheel] = wheels.glob("diffuserve-*.whl")
    pip = [str(environment / "bin" / "pip"), "install", "--quiet", "--find-links", str(wheels)]
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, *constraints, f"{wheel}{extras}"], check=True, timeout=INSTALL_SECONDS)


@pytest.fixture(scope="module")
def client(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the program of an install without extras."""
    environment = new_environment(tmp_path_factory.mktemp("client") / "venv")
    install(environment, wheels)
    return environment / "bin" / "diffuserve"


def test_a_client_is_small_and_says_what_it_lacks(client: Path, tmp_path: Path) -> None:
    pip = (str(client.with_name("pip")), "uninstall", "--quiet", "--yes", "pip", "setuptools")
    subprocess.run(pip, check=True)
    [packages] = client.parents[1].glob("lib/*/site-packages")
    assert list(packages.glob("diffuserve/__pycache__/version.*.pyc")), "pip compiles what it installs"
    on_disk = sum(512 * path.lstat().st_blocks for path in packages.rglob("*"))
    assert on_disk <= MAX_CLIENT_BYTES
    assert run(client, "--version", cwd=tmp_path).returncode == 0
    for command, extra in (("generate", "engine"), ("serve", "engine"), ("api", "server")):
        refused = run(client, command, cwd=tmp_path)
        assert refused.returncode == 2
        assert f"pip install 'diffuserve[{extra}]'" in " ".join(refused.stderr.split())


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


def test_the_installed_package_draws(wheels: Path, client: Path, tmp_path: Path) -> None:
    """Install the engine, which says that it has no weights; then these, with which it draws."""
    environment = new_environment(tmp_path / "venv")
    program = environment / "bin" / "diffuserve"
    install(environment, wheels, "[engine]")
    for name in ("transformers", "diffusers", "accelerate"):
        assert not list(environment.glob(f"lib/*/site-packages/{name}"))
    refused = run(program, "generate", "a red circle", cwd=tmp_path)
    assert refused.returncode == 2
    assert "pip install 'diffuserve[models]'" in " ".join(refused.stderr.split())

    install(environment, wheels, "[engine,models]")
    done = run(program, "generate", "a red circle", "-o", "circle.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with Image.open(tmp_path / "circle.png") as image:
        assert image.size == (128, 128)
    paste_the_first_steps(program, client, tmp_path)


def paste_the_first_steps(program: Path, client: Path, folder: Path) -> None:
    """Run every block of the documented first steps beside the installed server; then have a client draw."""
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
        fetched = run(client, "submit", "a star", "--server", address, "-o", "star.png", cwd=folder)
        assert fetched.returncode == 0, fetched.stderr
        assert (folder / "star.png").is_file()


def paste(kind: str, block: str, environment: Mapping[str, str], folder: Path) -> None:
    command = ["bash", "-euo", "pipefail", "-c", block] if kind == "bash" else ["python", "-c", block]
    subprocess.run(command, cwd=folder, env=dict(environment), check=True, timeout=INSTALL_SECONDS)
