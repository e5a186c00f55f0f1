"""Weights of the bundled models as a checkout tracks them: packed, at two thirds of their size.

`packed/` mirrors the models' folders. In a checkout the weights are unpacked beside the configs when they are
first asked for; wheels hold them plain. The build loads this module alone, so it imports nothing of ours.
"""

import filecmp
import lzma
import os
import threading
from pathlib import Path

_FOLDER, _SUFFIX = "packed", ".xz"
# Of numbers in bf16 every second byte is much like another: contexts tell even places from odd ones.
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 3, "lp": 1, "pb": 1}]


def unpack_weights(home: Path) -> list[Path]:
    """Write the weights that `home` lacks, or has older than packed ones; return their paths.

    Files appear whole, so that several processes may do this at once.
    """
    pairs = [(packed, _plain_path(home, packed)) for packed in (home / _FOLDER).rglob(f"*{_SUFFIX}")]
    stale = [(packed, plain) for packed, plain in pairs if _is_stale(plain, packed)]
    for packed, plain in stale:
        _write_whole(plain, lzma.decompress(packed.read_bytes()))
    return [plain for _, plain in stale]


def pack_weights(home: Path, model: str) -> list[Path]:
    """Pack the weights of the folder `home / model`; return the packed files.

    What is the same as another model's becomes a link to that one's.
    """
    packed_files = []
    for plain in (home / model).rglob("*.safetensors"):
        packed = home / _FOLDER / plain.relative_to(home).with_name(plain.name + _SUFFIX)
        namesakes = [path for path in sorted((home / _FOLDER).rglob(packed.name)) if path != packed]
        _end_links(namesakes, packed)
        _write_whole(packed, lzma.compress(plain.read_bytes(), check=lzma.CHECK_SHA256, filters=_FILTERS))
        _link_if_known(packed, namesakes)
        os.utime(plain)  # not older than what was packed of it
        packed_files.append(packed)
    return packed_files


def _plain_path(home: Path, packed: Path) -> Path:
    return home / packed.relative_to(home / _FOLDER).with_suffix("")


def _end_links(paths: list[Path], target: Path) -> None:
    """Give each path that links to `target`, which is about to change, a copy of its own."""
    for path in paths:
        if path.is_symlink() and path.resolve() == target.resolve():
            _write_whole(path, target.read_bytes())


def _link_if_known(packed: Path, others: list[Path]) -> None:
    twins = (path for path in others if not path.is_symlink() and filecmp.cmp(path, packed, shallow=False))
    if (twin := next(twins, None)) is not None:
        packed.unlink()
        packed.symlink_to(os.path.relpath(twin, packed.parent))


def _is_stale(plain: Path, packed: Path) -> bool:
    return not plain.exists() or plain.stat().st_mtime_ns < packed.stat().st_mtime_ns


def _write_whole(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    partial.write_bytes(content)
    os.replace(partial, path)
