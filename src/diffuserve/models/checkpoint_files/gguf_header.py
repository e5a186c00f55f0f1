"""The header of a GGUF file, read with bounds on everything that it states. Importing this loads no torch.

The reader of the package `gguf` makes an object for each number of an array, and trusts counts, offsets and
shapes: a small file could take all memory, or let tensors overlap. This one walks over what nobody asks for.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from diffuserve.domain.errors import InvalidModel

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_HEADER = 32 * 1024 * 1024  # bytes; vocabularies of text encoders take 10 MiB
_MAX_COUNT = 100_000  # tensors, and entries of metadata
_MAX_NAME = 512  # bytes; llama.cpp allows 64
_MAX_TEXTS = 1_000_000  # of arrays; the largest vocabularies have 260,000, and twice as many merges
_MAX_KEPT = 64 * 1024  # bytes of a text that is kept; longer ones are walked over, such as templates
_MAX_ITEMS = 64  # numbers of an array that is kept, such as a shape
_MAX_DIMS = 5  # ggml has four; kernels of convolutions over clips have five
_MAX_ALIGNMENT = 64 * 1024

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

Value = str | int | float | bool | tuple[int | float | bool, ...] | None


class BlockType(NamedTuple):
    """A format of numbers: `weights` of them take `num_bytes`."""

    name: str
    weights: int
    num_bytes: int


BLOCK_TYPES: Mapping[int, BlockType] = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20),
    6: BlockType("Q5_0", 32, 22),
    7: BlockType("Q5_1", 32, 24),
    8: BlockType("Q8_0", 32, 34),
    10: BlockType("Q2_K", 256, 84),
    11: BlockType("Q3_K", 256, 110),
    12: BlockType("Q4_K", 256, 144),
    13: BlockType("Q5_K", 256, 176),
    14: BlockType("Q6_K", 256, 210),
    20: BlockType("IQ4_NL", 32, 18),
    23: BlockType("IQ4_XS", 256, 136),
    30: BlockType("BF16", 1, 2),
}
"""The formats that are read, by their numbers in files."""
_PLAIN = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_FOUR_BITS = {"Q4_0", "Q4_1", "Q4_K"}


@dataclass(frozen=True)
class GgufTensor:
    """A tensor of a file: `shape` with the innermost dimension last, and its bytes from `offset` on."""

    name: str
    shape: tuple[int, ...]
    type: BlockType
    offset: int

    @property
    def is_plain(self) -> bool:
        """True if its numbers stand for themselves."""
        return self.type.name in _PLAIN

    @property
    def dtype(self) -> str:
        """The dtype it is read in: bf16 is closer to blocks (55 dB) than any of them to weights (45 dB)."""
        return _PLAIN.get(self.type.name, "bfloat16")

    @property
    def keeps_4_bits(self) -> bool:
        """True if its groups of 32 codes of 4 bits have a scale and a zero each, as those of our layers."""
        return self.type.name in _FOUR_BITS

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) // self.type.weights * self.type.num_bytes


@dataclass(frozen=True)
class GgufHeader:
    """What a file states. A value that is long, or an array of texts, is `None` in `metadata`."""

    metadata: Mapping[str, Value]
    tensors: Mapping[str, GgufTensor]


def read_header(path: Path) -> GgufHeader:
    """Read and check a file's header. Raise `InvalidModel` if it is none, or states what cannot be."""
    try:
        with path.open("rb") as opened:
            return _Reader(path, opened, path.stat().st_size).read()
    except OSError as error:
        raise InvalidModel(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise InvalidModel(f"{path}: a name or text is not UTF-8") from error


class _Reader:
    """Walks over a header, never beyond its longest."""

    def __init__(self, path: Path, content: BinaryIO, size: int) -> None:
        self._path, self._content, self._size = path, content, size
        self._end = min(size, _MAX_HEADER)
        self._at = self._num_texts = 0

    def read(self) -> GgufHeader:
        self._check_start()
        num_tensors, num_entries = self._count("tensors"), self._count("entries of metadata")
        metadata = self._metadata(num_entries)
        found = [self._tensor_info() for _ in range(num_tensors)]
        alignment = _alignment(metadata.get("general.alignment"), self._path)
        start = -(-self._at // alignment) * alignment
        tensors = [
            self._placed(name, shape, kind, start, offset, alignment) for name, shape, kind, offset in found
        ]
        _check_disjoint(tensors, self._path)
        named = {tensor.name: tensor for tensor in tensors}
        if len(named) != len(tensors):
            raise self._invalid("two tensors have the same name")
        return GgufHeader(metadata, named)

    def _check_start(self) -> None:
        if self._take(len(MAGIC)) != MAGIC:
            raise self._invalid("not a GGUF file: it does not begin with 'GGUF'")
        version = self._number("I")
        if version >= 1 << 16:
            raise self._invalid("numbers are in big-endian order, which is not read")
        if version not in _VERSIONS:
            raise self._invalid(
                f"GGUF of version {version} is not read, {_VERSIONS[0]} and {_VERSIONS[1]} are"
            )

    def _count(self, of: str) -> int:
        count: int = self._number("Q")
        if count > _MAX_COUNT:
            raise self._invalid(f"{count:,} {of}, more than {_MAX_COUNT:,}")
        return count

    def _metadata(self, num_entries: int) -> dict[str, Value]:
        metadata: dict[str, Value] = {}
        for _ in range(num_entries):
            key = self._name()
            if key in metadata:
                raise self._invalid(f"metadata has {key!r} twice")
            metadata[key] = self._value(self._number("I"))
        return metadata

    def _value(self, kind: int) -> Value:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            return self._array()
        value: Value = self._number(self._scalar(kind))
        return value

    def _array(self) -> Value:
        kind, count = self._number("I"), self._number("Q")
        if kind == _STRING:
            self._skip_texts(count)
            return None
        code = self._scalar(kind)
        content = self._take(count * struct.calcsize(f"<{code}"), keep=count <= _MAX_ITEMS)
        return None if count > _MAX_ITEMS else struct.unpack(f"<{count}{code}", content)

    def _skip_texts(self, count: int) -> None:
        self._num_texts += count
        if self._num_texts > _MAX_TEXTS:
            raise self._invalid(f"metadata has {self._num_texts:,} texts, more than {_MAX_TEXTS:,}")
        for _ in range(count):
            self._take(self._number("Q"), keep=False)

    def _scalar(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise self._invalid(f"metadata has a value of the unknown type {kind}")
        return _SCALARS[kind]

    def _tensor_info(self) -> tuple[str, tuple[int, ...], BlockType, int]:
        name, num_dims = self._name(), self._number("I")
        if not 1 <= num_dims <= _MAX_DIMS:
            raise self._invalid(f"{name!r} has {num_dims} dimensions, not 1 to {_MAX_DIMS}")
        shape = tuple(self._number("Q") for _ in range(num_dims))[::-1]
        kind, offset = self._number("I"), self._number("Q")
        if kind not in BLOCK_TYPES:
            raise self._invalid(
                f"{name!r} is in a format of GGUF that is not read (number {kind}); {_remedy()}"
            )
        return name, shape, BLOCK_TYPES[kind], offset

    def _placed(
        self, name: str, shape: tuple[int, ...], kind: BlockType, start: int, offset: int, alignment: int
    ) -> GgufTensor:
        """Return a tensor whose bytes are in the file. Raise `InvalidModel` for any other."""
        if 0 in shape or shape[-1] % kind.weights:
            raise self._invalid(
                f"{name!r} of shape {shape} cannot be in {kind.name}, blocks of {kind.weights}"
            )
        tensor = GgufTensor(name, shape, kind, start + offset)
        if offset % alignment:
            raise self._invalid(f"{name!r} begins at {offset}, not at a multiple of {alignment}")
        if tensor.offset + tensor.num_bytes > self._size:
            raise self._invalid(
                f"truncated: {name!r} ends at byte {tensor.offset + tensor.num_bytes:,} of {self._size:,}; "
                "download the file again"
            )
        return tensor

    def _name(self) -> str:
        length = self._number("Q")
        if not 1 <= length <= _MAX_NAME:
            raise self._invalid(f"a name has {length:,} bytes, not 1 to {_MAX_NAME}")
        return self._take(length).decode()

    def _text(self) -> str | None:
        length = self._number("Q")
        kept = length <= _MAX_KEPT
        content = self._take(length, keep=kept)
        return content.decode() if kept else None

    def _number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self._take(struct.calcsize(f"<{code}")))[0]

    def _take(self, count: int, keep: bool = True) -> bytes:
        """Return the next bytes, or walk over them."""
        self._at += count
        if self._at > self._end:
            raise self._invalid(
                "truncated in its header; download the file again"
                if self._end == self._size
                else f"its header is longer than {_MAX_HEADER:,} bytes"
            )
        if keep:
            return self._content.read(count)
        self._content.seek(count, os.SEEK_CUR)
        return b""

    def _invalid(self, problem: str) -> InvalidModel:
        return InvalidModel(f"{self._path}: {problem}")


def _alignment(stated: Value, path: Path) -> int:
    """Return the multiple at which tensors begin, a power of two."""
    alignment = 32 if stated is None else stated
    if not isinstance(alignment, int) or not 1 <= alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
        raise InvalidModel(
            f"{path}: general.alignment={stated!r} must be a power of two up to {_MAX_ALIGNMENT}"
        )
    return alignment


def _check_disjoint(tensors: Iterable[GgufTensor], path: Path) -> None:
    """Raise `InvalidModel` if two tensors share bytes: a small file could state a large model otherwise."""
    end, last = 0, ""
    for tensor in sorted(tensors, key=lambda tensor: tensor.offset):
        if tensor.offset < end:
            raise InvalidModel(f"{path}: {tensor.name!r} overlaps {last!r}")
        end, last = tensor.offset + tensor.num_bytes, tensor.name


def _remedy() -> str:
    names = [kind.name for kind in BLOCK_TYPES.values()]
    return f"take one in {', '.join(names[:-1])} or {names[-1]}"
