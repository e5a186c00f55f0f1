"""Python environments for servers and clients that do not fit into the project's own.

They are made once, in `out/test-environments`, and again when their requirements change. One that cannot be
made, as without a package index, skips the test with the reason.
"""

import fcntl
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "out" / "test-environments"
_INSTALL_SECONDS = 900.0


def environment(name: str, requirements: Sequence[str], sees_project: bool = True) -> Path:
    """Return an environment with these pinned requirements; programs are in its `bin`.

    One that `sees_project` also imports diffuserve, and where it lacks a package that of this environment.
    """
    made = FOLDER / name
    wanted = "\n".join((*requirements, f"sees_project={sees_project}"))
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process of this run may be making it
        stamp = made / "made-of.txt"
        if not stamp.exists() or stamp.read_text("utf-8") != wanted:
            _make(made, requirements, sees_project)
            stamp.write_text(wanted, "utf-8")
    return made


def _make(folder: Path, requirements: Sequence[str], sees_project: bool) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, *requirements], capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False
    )
    if done.returncode:
        pytest.skip(f"environment {folder.name}: {done.stderr.strip().splitlines()[-1]}")
    if sees_project:
        [packages] = folder.glob("lib/python*/site-packages")
        paths = (ROOT / "src", sysconfig.get_path("purelib"))
        (packages / "diffuserve-and-packages.pth").write_text("".join(f"{path}\n" for path in paths))
