"""Weights of the bundled models as a checkout tracks them: packed, at two thirds of their size or less.

`packed/` mirrors the models' folders. In a checkout the weights are unpacked beside the configs when they are
first asked for; wheels hold them plain. The build loads this module alone, so it imports nothing of ours, nor
anything that is not Python's.

Weights may be packed as codes of 8 bits: then `scale:NAME` of the type U8 stands beside `NAME` of I8, and
says for each row what a code counts: 2 to the power of `(exponent - 192) / 8`. They are unpacked to bf16.
"""

import filecmp
import json
import lzma
import os
import struct
import threading
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

_FOLDER, _SUFFIX = "packed", ".xz"
# Of numbers in bf16 every second byte is much like another: contexts tell even places from odd ones.
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 3, "lp": 1, "pb": 1}]
SCALE = "scale:"
"""Before the name of the tensor whose scales a tensor holds."""
EXPONENTS_PER_OCTAVE, MIDDLE_EXPONENT = 8, 192
_TOLD = "__metadata__"


def unpack_weights(home: Path) -> list[Path]:
    """Write the weights that `home` lacks, or has older than packed ones; return their paths.

    Files appear whole, so that several processes may do this at once.
    """
    pairs = [(packed, _plain_path(home, packed)) for packed in (home / _FOLDER).rglob(f"*{_SUFFIX}")]
    stale = [(packed, plain) for packed, plain in pairs if _is_stale(plain, packed)]
    for packed, plain in stale:
        content = lzma.decompress(packed.read_bytes())
        _write_whole(plain, _decoded(content) if plain.suffix == ".safetensors" else content)
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


def _decoded(content: bytes) -> bytes:
    """Return a safetensors file whose coded tensors are numbers in bf16; without any, the file as it is."""
    length = 8 + int.from_bytes(content[:8], "little")
    if f'"{SCALE}'.encode() not in content[8:length]:
        return content
    header: dict[str, Any] = json.loads(content[8:length])
    told = header.pop(_TOLD, None)
    plain: dict[str, Any] = {} if told is None else {_TOLD: told}
    parts = list[bytes]()
    for name in (name for name in header if not name.startswith(SCALE)):
        entry, part = header[name], _bytes_of(content, length, header[name])
        if scale := header.get(SCALE + name):
            entry, part = entry | {"dtype": "BF16"}, _numbers(part, _bytes_of(content, length, scale))
        start = sum(map(len, parts))
        plain[name] = entry | {"data_offsets": [start, start + len(part)]}
        parts.append(part)
    written = json.dumps(plain).encode()
    written += b" " * (-len(written) % 8)
    return b"".join([len(written).to_bytes(8, "little"), written, *parts])


def _bytes_of(content: bytes, header_end: int, entry: dict[str, Any]) -> bytes:
    start, stop = entry["data_offsets"]
    return content[header_end + start : header_end + stop]


def _numbers(codes: bytes, exponents: bytes) -> bytes:
    """Return the bf16 that rows of codes stand for, one exponent for each row."""
    numbers, width = bytearray(2 * len(codes)), len(codes) // len(exponents)
    for exponent, (start, stop) in zip(exponents, pairwise(range(0, len(codes) + 1, width)), strict=True):
        low, high = _tables(exponent)
        numbers[2 * start : 2 * stop : 2] = codes[start:stop].translate(low)
        numbers[2 * start + 1 : 2 * stop : 2] = codes[start:stop].translate(high)
    return bytes(numbers)


@cache
def _tables(exponent: int) -> tuple[bytes, bytes]:
    """Return the lower and the upper byte of the bf16 that each of the 256 codes stands for."""
    scale = 2.0 ** ((exponent - MIDDLE_EXPONENT) / EXPONENTS_PER_OCTAVE)
    signed = (code - 256 * (code > 127) for code in range(256))
    bits = [struct.unpack("<I", struct.pack("<f", scale * code))[0] for code in signed]
    rounded = [(number + 0x7FFF + (number >> 16 & 1)) >> 16 for number in bits]
    return bytes(number & 0xFF for number in rounded), bytes(number >> 8 for number in rounded)


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
