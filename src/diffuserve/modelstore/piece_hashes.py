"""Hashes of the pieces of files, as BitTorrent v2 defines them (BEP 52): trees of SHA-256 over 16 KiB blocks.

A swarm of peers can verify pieces by the hashes of a manifest, and a manifest's hash is its info-hash.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

PIECE_BYTES = 4 * 1024 * 1024
_BLOCK_BYTES = 16 * 1024
_NO_BLOCK = bytes(32)
Bencoded = int | bytes | Sequence["Bencoded"] | Mapping[bytes, "Bencoded"]


def hash_piece(content: bytes | memoryview, file_bytes: int) -> str:
    """Return the hash of a piece of a file of `file_bytes`, in hex.

    The tree of a file's only piece is as high as its blocks need; every other piece has one of full height,
    the last one too.
    """
    view = memoryview(content)
    blocks = [
        hashlib.sha256(view[start : start + _BLOCK_BYTES]).digest()
        for start in range(0, len(view), _BLOCK_BYTES)
    ]
    num_leaves = PIECE_BYTES // _BLOCK_BYTES if file_bytes > PIECE_BYTES else 1
    return _root(blocks, num_leaves, _NO_BLOCK).hex()


def pieces_root(pieces: Sequence[str]) -> bytes:
    """Return the root of a file's tree from the hashes of its pieces."""
    if len(pieces) == 1:
        return bytes.fromhex(pieces[0])
    no_piece = _root([], PIECE_BYTES // _BLOCK_BYTES, _NO_BLOCK)
    return _root([bytes.fromhex(piece) for piece in pieces], 1, no_piece)


def hash_content(path: Path, report: Callable[[int], None] = lambda _: None) -> tuple[str, tuple[str, ...]]:
    """Return a file's SHA-256 and the hashes of its pieces, in hex; `report` receives the bytes read."""
    whole, pieces, size = hashlib.sha256(), list[str](), path.stat().st_size
    with path.open("rb", buffering=0) as file:
        while content := file.read(PIECE_BYTES):
            whole.update(content)
            pieces.append(hash_piece(content, size))
            report(len(content))
    return whole.hexdigest(), tuple(pieces)


def bencode(value: Bencoded) -> bytes:
    """Return the canonical form of a value in BitTorrent's encoding, which its info-hash is taken of."""
    match value:
        case int():
            return b"i%de" % value
        case bytes():
            return b"%d:%b" % (len(value), value)
        case Mapping():
            entries = (bencode(key) + bencode(value[key]) for key in sorted(value))
            return b"d%be" % b"".join(entries)
        case _:
            return b"l%be" % b"".join(map(bencode, value))


def _root(hashes: Sequence[bytes], num_leaves: int, padding: bytes) -> bytes:
    """Return the root of a binary tree with at least `num_leaves` leaves, filled up with `padding`."""
    num_leaves = max(num_leaves, 1 << max(len(hashes) - 1, 0).bit_length())
    level = [*hashes, *[padding] * (num_leaves - len(hashes))]
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=True)
        level = [hashlib.sha256(left + right).digest() for left, right in pairs]
    return level[0]
