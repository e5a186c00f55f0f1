"""An engine's folder is deleted with its owner, even if that was killed."""

import os
import tempfile
import time
from pathlib import Path

import pytest

from diffuserve.worker.private_folder import PrivateFolder


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def grow_old(folder: Path) -> None:
    then = time.time() - 3600
    os.utime(folder, (then, then))


def test_a_folder_is_deleted_with_its_files() -> None:
    folder = PrivateFolder()
    (folder.path / "attempt").mkdir()
    (folder.path / "attempt" / "0.png").write_bytes(b"...")
    folder.delete()
    assert not folder.path.exists()
    folder.delete()


def test_the_folder_of_a_killed_owner_is_deleted_by_the_next_owner(root: Path) -> None:
    left = root / "diffuserve-worker-left"
    left.mkdir()
    grow_old(left)
    PrivateFolder().delete()
    assert not left.exists()


def test_the_folder_of_a_living_owner_is_kept() -> None:
    other = PrivateFolder()
    grow_old(other.path)
    PrivateFolder().delete()
    assert other.path.exists()
    other.delete()


def test_a_young_folder_is_kept_as_its_owner_may_be_about_to_lock_it(root: Path) -> None:
    young = root / "diffuserve-worker-young"
    young.mkdir()
    PrivateFolder().delete()
    assert young.exists()
