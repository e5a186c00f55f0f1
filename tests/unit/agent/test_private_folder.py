"""An engine's folder is deleted with its owner, even if that was killed."""

import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from diffuserve.agent.private_folder import PrivateFolder
from support.waiting import HANG_SECONDS


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


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("elsewhere")])
def test_what_others_have_put_there_is_neither_waited_for_nor_touched(
    make: Callable[[Path], None], root: Path
) -> None:
    """A FIFO would keep its reader waiting, as nobody writes into it."""
    (elsewhere := root / "elsewhere").mkdir()
    make(odd := root / "diffuserve-worker-odd")
    for path in (odd, elsewhere):
        os.utime(path, (0, 0), follow_symlinks=False)
    swept = threading.Thread(target=lambda: PrivateFolder().delete(), daemon=True)
    swept.start()
    swept.join(HANG_SECONDS / 10)
    assert not swept.is_alive(), "it waits"
    assert odd.is_symlink() or odd.exists()
    assert elsewhere.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes folders of others")
def test_the_folder_of_another_user_is_kept(root: Path) -> None:
    (others := root / "diffuserve-worker-others").mkdir()
    os.chown(others, 12_345, 12_345)
    grow_old(others)
    PrivateFolder().delete()
    assert others.exists()
