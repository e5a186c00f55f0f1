"""The manifest of a model: its files, and the hash that identifies this version of it."""

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from diffuserve.domain.errors import InvalidModel, ModelNotFound
from diffuserve.domain.text.path_parts import FILE_NAME, FileName, Sha256
from diffuserve.domain.text.shortened import shortened
from diffuserve.models.folders.model_paths import INDEX_FILE, INDEX_FILES
from diffuserve.models.folders.read_files import SUFFIXES
from diffuserve.models.weights.fingerprint import combine_hashes
from diffuserve.modelstore.piece_hashes import PIECE_BYTES, Bencoded, bencode, pieces_root

MAX_MANIFEST_BYTES = 64 * 1024 * 1024
_MAX_FILES = 2_000
_MAX_FILE_BYTES = 1 << 40
_MAX_PIECES = 500_000  # 2 TB
_PATH = r"^([A-Za-z0-9_][A-Za-z0-9_.-]{0,99}/)?[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}$"  # none begins with a dot
_MIN_DIGITS = 12  # of an abbreviated hash

Words = Annotated[str, StringConstraints(max_length=500)]


@dataclass(frozen=True)
class ModelFile:
    """A file of a model; `pieces` are the hashes of its parts of 4 MiB."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid", strict=True)

    path: Annotated[str, StringConstraints(pattern=_PATH)]
    size: Annotated[int, Field(ge=0, le=_MAX_FILE_BYTES)]
    sha256: Sha256
    pieces: Annotated[tuple[Sha256, ...], Field(max_length=_MAX_PIECES)]


@dataclass(frozen=True)
class Piece:
    """A part of a file; `index` counts the pieces of all files, as a swarm of peers does."""

    index: int
    file: ModelFile
    offset: int
    sha256: str

    @property
    def size(self) -> int:
        return min(PIECE_BYTES, self.file.size - self.offset)


@dataclass(frozen=True)
class Manifest:
    """The files of a version of a model, in the order of their paths' parts.

    `family` is the family that loads it; `license` and `source` are for people.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid", strict=True)

    name: FileName
    family: Annotated[str, StringConstraints(max_length=100)]
    license: Words
    source: Words
    files: Annotated[tuple[ModelFile, ...], Field(max_length=_MAX_FILES)]
    format: Literal["diffuserve-model/1"] = "diffuserve-model/1"

    @cached_property
    def hash(self) -> str:
        """The v2 info-hash of the model as a private torrent: it covers every field."""
        return hashlib.sha256(bencode(torrent_info(self))).hexdigest()

    @property
    def reference(self) -> str:
        """Name and hash, which identify exactly this version."""
        return f"{self.name}@{self.hash}"

    @property
    def num_bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def weights_hash(self) -> str:
        """The fingerprint of the weights, as images record it: `hash_weights` of the folder."""
        weights = {file.path: file.sha256 for file in self.files if file.path.endswith(".safetensors")}
        return combine_hashes(weights)

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        parts = [
            (file, number * PIECE_BYTES, digest)
            for file in self.files
            for number, digest in enumerate(file.pieces)
        ]
        return tuple(Piece(index, *part) for index, part in enumerate(parts))

    def to_json(self) -> bytes:
        return _MANIFEST.dump_json(self, indent=1)


_MANIFEST = TypeAdapter(Manifest)


def parse_manifest(content: bytes, expected_hash: str | None = None) -> Manifest:
    """Return the manifest in a file, which is not trusted.

    Raise `InvalidModel` if it is too large, malformed, contradicts itself, or is not the one with
    `expected_hash`.
    """
    if len(content) > MAX_MANIFEST_BYTES:
        raise InvalidModel(f"a manifest of {len(content):,} bytes; at most {MAX_MANIFEST_BYTES:,} are read")
    try:
        manifest = _MANIFEST.validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "its text"
        raise InvalidModel(
            f"a manifest that is none: {where}: {first['msg']} ({shortened(first['input'])})"
        ) from error
    check_manifest(manifest)
    if expected_hash is not None and manifest.hash != expected_hash:
        raise InvalidModel(
            f"the manifest of {manifest.name} has the hash {manifest.hash}, where {expected_hash} belongs: "
            "it was changed after it was published; push the model again"
        )
    return manifest


def check_manifest(manifest: Manifest) -> None:
    """Raise `InvalidModel` if files contradict one another, or a pipeline does not read them."""
    for file in manifest.files:
        if PurePosixPath(file.path).suffix not in SUFFIXES:
            known = ", ".join(SUFFIXES)
            raise InvalidModel(f"{manifest.name}: {file.path} is none of the files that are read ({known})")
        if len(file.pieces) != -(-file.size // PIECE_BYTES):
            raise InvalidModel(
                f"{manifest.name}: {file.path} has {file.size:,} bytes, but {len(file.pieces)} pieces"
            )
    parts = [parts_of(file.path) for file in manifest.files]
    for before, after in pairwise(parts):
        if before >= after or before == after[:1]:
            raise InvalidModel(
                f"{manifest.name}: {'/'.join(after)} comes after {'/'.join(before)}: twice, or out of order"
            )
    if not any((name,) in parts for name in INDEX_FILES):
        raise InvalidModel(f"{manifest.name}: {INDEX_FILE} is missing")
    if sum(len(file.pieces) for file in manifest.files) > _MAX_PIECES:
        raise InvalidModel(f"{manifest.name}: more than {_MAX_PIECES:,} pieces")


def parts_of(path: str) -> tuple[str, ...]:
    """Return the parts of a path, by which files are in order."""
    return tuple(path.split("/"))


@dataclass(frozen=True)
class Reference:
    """A model of a store as people name it: `NAME`, or `NAME@HASH` with the first digits of its hash."""

    name: str
    digits: str = ""

    def __str__(self) -> str:
        return f"{self.name}@{self.digits}" if self.digits else self.name

    def fits(self, version: str) -> bool:
        """Return whether a version matches the reference."""
        return version.startswith(self.digits)


def parse_reference(text: str) -> Reference:
    """Return the reference in a text. Raise `ModelNotFound` if no store can have a model of that name."""
    name, at, digits = text.partition("@")
    is_hash = not at or re.fullmatch(rf"[0-9a-f]{{{_MIN_DIGITS},64}}", digits)
    if not FILE_NAME.fullmatch(name) or not is_hash:
        raise ModelNotFound(
            f"{text[:200]!r} names no model of a store: give NAME or NAME@HASH, the name of letters, digits, "
            f"'.', '_' and '-', and at least {_MIN_DIGITS} digits of the hash"
        )
    return Reference(name, digits)


def is_reference(text: str) -> bool:
    """Return whether a text has the form of a name in a store."""
    try:
        parse_reference(text)
    except ModelNotFound:
        return False
    return True


def torrent_info(manifest: Manifest) -> dict[bytes, Bencoded]:
    """Return the model as a torrent describes it, in what is hashed."""
    described: dict[bytes, Bencoded] = {
        b"family": manifest.family.encode(),
        b"format": manifest.format.encode(),
        b"license": manifest.license.encode(),
        b"sha256": b"".join(bytes.fromhex(file.sha256) for file in manifest.files),
        b"source": manifest.source.encode(),
    }
    return {
        b"diffuserve": described,
        b"file tree": _file_tree(manifest.files),
        b"meta version": 2,
        b"name": manifest.name.encode(),
        b"piece length": PIECE_BYTES,
        b"private": 1,
    }


def _file_tree(files: tuple[ModelFile, ...]) -> dict[bytes, Bencoded]:
    tree: dict[bytes, Any] = {}
    for file in files:
        leaf: dict[bytes, Bencoded] = {b"length": file.size}
        if file.pieces:
            leaf[b"pieces root"] = pieces_root(file.pieces)
        *folders, name = parts_of(file.path)
        folder = tree
        for part in folders:
            folder = folder.setdefault(part.encode(), {})
        folder[name.encode()] = {b"": leaf}
    return tree
