"""A server keeps its data for its own user to read."""

import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from diffuserve.domain.errors import InvalidParams
from diffuserve.private_files import Access, make_private_file, make_private_folder, private_umask
from diffuserve.settings import Settings
from diffuserve.storage.opening import open_artifacts
from diffuserve.wiring.control import control_plane, open_store
from diffuserve.wiring.data_folder import locked


@pytest.fixture(autouse=True)
def _careless_umask() -> Iterator[None]:
    """Run every test as a user whose files anyone can read, as most are by default."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "data"):
        with pytest.raises(InvalidParams, match="file is a file, and a folder is needed"):
            locked(folder).__enter__()


def test_a_folder_that_cannot_be_made_is_refused() -> None:
    with pytest.raises(InvalidParams, match=f"cannot be used.*user {os.geteuid()} may create files"):
        locked(Path("/proc/no/folder")).__enter__()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("access", "folder", "file"), [(Access.OWNER, 0o700, 0o600), (Access.GROUP, 0o750, 0o640)]
)
def test_folders_and_files_are_made_for_those_who_may_read_them(
    tmp_path: Path, access: Access, folder: int, file: int
) -> None:
    root = tmp_path / "parent" / "data"
    make_private_folder(root, access)
    make_private_file(root / "made", access)
    with private_umask(access):
        (root / "written").touch()
        (root / "below").mkdir()
    assert [mode(root), mode(root / "below")] == [folder, folder]
    assert [mode(root / "made"), mode(root / "written")] == [file, file]
    (root / "after").touch()
    assert mode(root / "after") == 0o644


@pytest.mark.parametrize(
    ("access", "permissions", "is_refused"),
    [
        (Access.OWNER, 0o700, False),
        (Access.OWNER, 0o500, False),
        (Access.OWNER, 0o710, True),
        (Access.OWNER, 0o755, True),
        (Access.OWNER, 0o777, True),
        (Access.GROUP, 0o750, False),
        (Access.GROUP, 0o2770, False),
        (Access.GROUP, 0o755, True),
        (Access.GROUP, 0o771, True),
    ],
)
def test_an_existing_folder_that_others_can_enter_is_refused_with_the_remedy(
    tmp_path: Path, access: Access, permissions: int, is_refused: bool
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(permissions)
    if not is_refused:
        make_private_folder(folder, access)
        return
    with pytest.raises(InvalidParams, match=rf"mode {permissions:04o}.*chmod -R \w+= {folder}") as refused:
        make_private_folder(folder, access)
    assert refused.value.field == "data_dir"


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if owner == 0:
        os.chown(tmp_path, owner + 2, -1)
    with pytest.raises(InvalidParams, match="belongs to user"):
        make_private_folder(tmp_path)


async def test_a_database_and_the_files_beside_it_are_private(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data", prompt_filter="none")
    async with open_store(settings):
        files = {path.name: mode(path) for path in settings.data_dir.iterdir()}
    assert mode(settings.data_dir) == 0o700
    assert {"diffuserve.db", "diffuserve.db-wal", "diffuserve.db-shm"} <= files.keys()
    assert set(files.values()) == {0o600}


async def test_a_database_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    sqlite3.connect(file).execute("create table t (x)").connection.close()
    assert mode(file) == 0o644
    with pytest.raises(InvalidParams, match=f"chmod -R go= {file}"):
        async with open_store(Settings(database_url=f"sqlite:///{file}")):
            raise AssertionError("it must not open")


async def test_a_server_refuses_a_data_folder_that_others_can_enter(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    with pytest.raises(InvalidParams, match="chmod"), locked(folder):
        raise AssertionError("it must not be locked")
    settings = Settings(data_dir=folder, database_url="postgresql://nobody@localhost/none")
    with pytest.raises(InvalidParams, match="chmod"):
        async with control_plane(settings):
            raise AssertionError("its files would be readable")


def test_a_group_may_be_let_in(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data", data_access=Access.GROUP)
    with locked(settings.data_dir, settings.data_access):
        assert mode(settings.data_dir) == 0o750


def test_a_folder_of_finished_files_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    with pytest.raises(InvalidParams, match="artifacts_url"):
        open_artifacts(folder.as_uri())
    folder.chmod(0o750)
    open_artifacts(folder.as_uri(), Access.GROUP)
