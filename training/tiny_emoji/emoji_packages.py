"""The published sets that the pictures and words come from, fetched once and checked.

    python training/tiny_emoji/emoji_packages.py    # into out/tiny_emoji/packages; needs npm and its registry

Training itself downloads nothing.
"""

import argparse
import hashlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tarfile import TarFile
from tarfile import open as open_tar

FOLDER = Path("out/tiny_emoji/packages")


@dataclass(frozen=True)
class Package:
    """A package of a pinned version, as the registry's archive of these bytes."""

    name: str
    version: str
    sha256: str

    @property
    def archive(self) -> str:
        return f"{self.name.lstrip('@').replace('/', '-')}-{self.version}.tgz"


PICTURES_3D = Package(
    "@lobehub/fluent-emoji-3d", "1.1.0", "c1bb7eee7de090205a232518a9ab4adb3df458bfbe8a1f78232991194c8b2e58"
)
PICTURES_FLAT = Package(
    "emoji-datasource-google", "16.0.0", "fb5fd131b362aab7a55542d2a147a79708cce0a8b1c1bbacd470172708b5c438"
)
NAMES = Package(
    "emojibase-data", "17.0.0", "d01d0e2ca4e22cb402679532155342c71e2e871f25c32223c013b8b166ebdf5a"
)
PACKAGES = (PICTURES_3D, PICTURES_FLAT, NAMES)


def fetch(package: Package, folder: Path) -> Path:
    """Return the package's archive in `folder`, downloaded if it is not there; refuse other bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / package.archive
    if not path.exists():
        wanted = f"{package.name}@{package.version}"
        subprocess.run(["npm", "pack", "--silent", wanted], cwd=folder, check=True)  # noqa: S603, S607
    check(package, path)
    return path


def check(package: Package, path: Path) -> None:
    """Raise `ValueError` unless the archive holds exactly the bytes that the pictures were chosen from."""
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != package.sha256:
        raise ValueError(
            f"{path} has SHA-256 {found} instead of {package.sha256}; delete it and fetch it again"
        )


def members(package: Package, folder: Path, under: str) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the files below `under` in the package's archive."""
    path = folder / package.archive
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing; fetch it with `make emoji-packages`")
    check(package, path)
    with open_tar(path) as archive:
        yield from _files(archive, f"package/{under}/")


def _files(archive: TarFile, prefix: str) -> Iterator[tuple[str, bytes]]:
    for member in archive:
        if member.name.startswith(prefix) and (file := archive.extractfile(member)):
            yield member.name.removeprefix(prefix), file.read()


def main() -> None:
    """Fetch all packages."""
    parser = argparse.ArgumentParser(description="Fetch the published sets of pictures and names.")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    folder = parser.parse_args().folder
    for package in PACKAGES:
        print(fetch(package, folder))


if __name__ == "__main__":
    main()
