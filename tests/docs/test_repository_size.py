"""The repository stays small enough to be carried to a machine without a network."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_BYTES = 45 * 2**20


def test_tracked_files_have_at_most_45_mib() -> None:
    sizes = {name: (ROOT / name).lstat().st_size for name in tracked_files() if (ROOT / name).is_file()}
    largest = sorted(sizes, key=lambda name: -sizes[name])[:5]
    assert sum(sizes.values()) <= MAX_BYTES, f"the largest: {largest}"


def tracked_files() -> list[str]:
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs a git checkout: {error}")
    return [name for name in listed.stdout.split("\0") if name]
