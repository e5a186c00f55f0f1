"""Folders and files that other users of the machine may not read: prompts, images, signing secrets."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

from diffuserve.domain.errors import InvalidParams

_NOT_OWN = "what is in it is used as it is: delete it, or give a folder of your own"


class Access(StrEnum):
    """The readers of private files: their owner alone, or the folder's group too."""

    OWNER = "owner"
    GROUP = "group"

    @property
    def umask(self) -> int:
        """Permissions that new files and folders do not get."""
        return 0o077 if self is Access.OWNER else 0o027

    @property
    def refused(self) -> int:
        """Permissions that an existing file or folder must not have."""
        return 0o077 if self is Access.OWNER else 0o007


@contextmanager
def private_umask(access: Access = Access.OWNER) -> Iterator[None]:
    """Keep what this process and its children create within the block from others."""
    before = os.umask(access.umask)
    try:
        yield
    finally:
        os.umask(before)


def make_private_folder(folder: Path, access: Access = Access.OWNER, setting: str = "data_dir") -> None:
    """Create a folder and its parents, where need be.

    Raise `InvalidParams` if that is not possible, or if others may enter it.
    """
    with refused_if_unusable(folder, setting):
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o777 & ~access.umask, exist_ok=True)
    _check(folder, access, setting)


def make_private_file(file: Path, access: Access = Access.OWNER, setting: str = "data_dir") -> None:
    """Create an empty file, where need be. Raise `InvalidParams` if others may read it, and `OSError`.

    SQLite gives the files beside its database the database's permissions.
    """
    os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666 & ~access.umask))
    _check(file, access, setting)


@contextmanager
def refused_if_unusable(path: Path, setting: str = "data_dir") -> Iterator[None]:
    """Raise `InvalidParams`, which names the setting, for an error of the block: it cannot use `path`."""
    try:
        yield
    except (FileExistsError, NotADirectoryError) as error:
        remedy = f"{error.filename or path} is a file, and a folder is needed; give another one"
        raise InvalidParams(setting, str(path), remedy) from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        remedy = f"cannot be used: {reason}; give a folder in which user {os.geteuid()} may create files"
        raise InvalidParams(setting, str(path), remedy) from error


def check_own(path: Path, setting: str) -> None:
    """Raise `InvalidParams` if a user other than this one and root may have written a folder or file.

    Its group may: orchestrators give volumes to groups. Raise `FileNotFoundError` without one.
    """
    found = path.lstat()
    if found.st_uid not in (0, os.geteuid()):
        raise InvalidParams(setting, str(path), f"belongs to user {found.st_uid}; {_NOT_OWN}")
    if found.st_mode & stat.S_IWOTH or stat.S_ISLNK(found.st_mode):
        raise InvalidParams(setting, str(path), f"can be changed by everybody, or is a link; {_NOT_OWN}")


def check_not_public(path: Path, setting: str) -> None:
    """Raise `InvalidParams` if every user of the machine may read a file, and `OSError` without one.

    Its group may: orchestrators give secrets to groups.
    """
    if path.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
        remedy = f"every user of this machine can access it, and it is a secret; run: chmod o= {path}"
        raise InvalidParams(setting, str(path), remedy)


def _check(path: Path, access: Access, setting: str) -> None:
    found = path.stat()
    if found.st_uid not in (0, os.geteuid()) and os.geteuid() != 0:
        raise InvalidParams(
            setting, str(path), f"belongs to user {found.st_uid}, who can read it; give a folder of your own"
        )
    mode = stat.S_IMODE(found.st_mode)
    if mode & access.refused:
        classes = "go" if access is Access.OWNER else "o"
        raise InvalidParams(
            setting,
            str(path),
            f"other users of this machine can access it (mode {mode:04o}), and it holds prompts and secrets; "
            f"run: chmod -R {classes}= {path}",
        )
