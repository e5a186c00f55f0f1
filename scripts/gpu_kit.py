"""Fetch the wheels that a machine with a GPU and no network lacks, and say what to run there.

    python scripts/gpu_kit.py

The machine has Python 3.12, torch 2.9 or later with CUDA, and transformers; its huggingface_hub may be older
than the one that is declared, since only `pull` and ids of hub models use it.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_name("gpu_kit_wheels.txt")
KIT = Path("out", "gpu_kit")
_GLIBC = (28, 27, 24, 17, 5)  # minor versions of the manylinux tags, of which pip matches each exactly
_PLATFORMS = [*(f"manylinux_2_{minor}_x86_64" for minor in _GLIBC), "manylinux2014_x86_64"]
_MIB = 2**20
_STAGES = ("about kernels parity invariance oom graphs", "eager streams fp8", "int8 compiled")
_INSTALL = (
    "python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade"
    f" --target /tmp/site {KIT}/*.whl"
)
_PLAY = (
    'PYTHONPATH=/tmp/site PYTHONUNBUFFERED=1 python3 scripts/gpu_day.py --within 570 --copy-to "${OUT:-out}"'
)


def main() -> None:
    fetch(ROOT / KIT)
    wheels = list((ROOT / KIT).glob("*.whl"))
    print(f"{KIT}: {len(wheels)} wheels, {mebibytes(wheels):.1f} MiB")
    print(f"tracked files: {mebibytes(tracked_files()):.1f} MiB")
    print("\nCarry both to the machine, and run there, in the repository, one after another:\n")
    print("\n".join([_INSTALL, *(f"{_PLAY} {stages}" for stages in _STAGES)]))


def fetch(folder: Path) -> None:
    """Fetch the listed wheels; their hashes are checked."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", "3.12", "--implementation", "cp", "--require-hashes"]
    command += [option for platform in _PLATFORMS for option in ("--platform", platform)]
    subprocess.run([*command, "--dest", folder, "--requirement", LIST], check=True)


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def mebibytes(files: list[Path]) -> float:
    return sum(file.stat().st_size for file in files if file.is_file()) / _MIB


if __name__ == "__main__":
    main()
