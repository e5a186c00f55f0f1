"""Write the locks of the container images, which name every package by version and by the hash of its wheels.

    python scripts/lock_images.py

`constraints.txt` says which versions, PyPI which hashes. The locks hold wheels of CPython 3.11 on Linux, as
the images' base has it. torch's own build for CPUs is on another index: when its version changes, the line
in `torch-cpu.txt` is edited by hand, after that index. Run it with a pip of 2024 or newer, which reads
descriptions; an older one fetches gigabytes.
"""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "deploy" / "docker" / "locks"
PYTHON = "3.11"
MACHINES = ("x86_64", "aarch64")
LIBC = range(5, 37)  # minor versions of glibc that wheels may ask for: Debian 12 has 2.36
_CUDA = re.compile(r"torch|triton|(nvidia|cuda)-.*")  # what torch's index brings, or a CPU does without
_HEAD = "# Written by scripts/lock_images.py from constraints.txt, with hashes of PyPI.\n"

Wheels = Mapping[str, set[str]]
"""Hashes of the wheels of each `name==version`."""


def main() -> int:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    project = declared["project"]
    worker, foreign = (
        resolve(requirements(project, extra), MACHINES, without="torch") for extra in ("engine", "diffusers")
    )
    torch = resolve(["torch"], MACHINES[:1])
    of_cuda = {pin: hashes for pin, hashes in torch.items() if _CUDA.fullmatch(name_of(pin))}
    write("build", resolve(declared["build-system"]["requires"], MACHINES))
    write("control", resolve(requirements(project, "server"), MACHINES))
    write("control[images]", resolve(requirements(project, "images"), MACHINES))
    beside_torch = {pin: found for pin, found in torch.items() if pin not in of_cuda}
    write("worker", merged(worker, beside_torch))
    own = {pin: found for pin, found in foreign.items() if not _CUDA.fullmatch(name_of(pin))}
    write("worker[diffusers]", merged(own, beside_torch))  # accelerate brings torch, which has its own lock
    write("torch-cuda", of_cuda)
    return 0


def requirements(project: Mapping[str, Any], extra: str) -> list[str]:
    """Return what the project needs with an extra, those that this names included."""
    return [*project["dependencies"], *_of_extra(project, extra)]


def _of_extra(project: Mapping[str, Any], extra: str) -> Iterator[str]:
    own = re.compile(rf"{project['name']}\[(\w+)\]")
    for line in project["optional-dependencies"][extra]:
        named = own.fullmatch(line)
        yield from _of_extra(project, named[1]) if named else [line]


def resolve(wanted: Sequence[str], machines: Iterable[str], without: str | None = None) -> Wheels:
    """Return the wheels that pip would install for these requirements, on any of the machines."""
    found: dict[str, set[str]] = defaultdict(set)
    wanted = [line for line in wanted if without is None or name_of(line) != without]
    for machine in machines:
        for item in reported(wanted, machine):
            pin = f"{canonical(item['metadata']['name'])}=={item['metadata']['version']}"
            found[pin].add(item["download_info"]["archive_info"]["hashes"]["sha256"])
    return found


def reported(wanted: Sequence[str], machine: str) -> list[dict[str, Any]]:
    """Have pip tell what it would install, without fetching more than descriptions."""
    tags = ("manylinux2014", *(f"manylinux_2_{minor}" for minor in LIBC))
    platforms = [f"--platform={tag}_{machine}" for tag in tags]
    with tempfile.TemporaryDirectory() as folder:
        target = (f"--target={folder}", "--only-binary=:all:", f"--python-version={PYTHON}")
        command = [
            sys.executable,
            "-m",
            "pip",
            "--isolated",
            "install",
            "--quiet",
            "--dry-run",
            "--ignore-installed",
        ]
        command += ["--index-url=https://pypi.org/simple", "--report=-", *target, *platforms]
        constrained = [f"--constraint={ROOT / 'constraints.txt'}", *wanted]
        done = subprocess.run([*command, *constrained], stdout=subprocess.PIPE, text=True, check=True)
    report: list[dict[str, Any]] = json.loads(done.stdout)["install"]
    return report


def merged(*parts: Wheels) -> Wheels:
    """Return the wheels of all parts."""
    found: dict[str, set[str]] = defaultdict(set)
    for part in parts:
        for pin, hashes in part.items():
            found[pin] |= hashes
    return found


def write(name: str, wheels: Wheels) -> None:
    """Write a lock as a file of requirements."""
    lines = [
        " \\\n    ".join([pin, *(f"--hash=sha256:{digest}" for digest in sorted(hashes))])
        for pin, hashes in sorted(wheels.items())
    ]
    (FOLDER / f"{name}.txt").write_text(_HEAD + "\n".join(lines) + "\n", encoding="utf-8")


def name_of(requirement: str) -> str:
    """Return the name of the package that a requirement is about."""
    return canonical(re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0])


def canonical(name: str) -> str:
    """Return a package's name as indexes compare them."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main())
