"""GGUF files made at run time: random blocks with plausible scales, and hostile headers."""

import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

KINDS = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS")
_SCALES: Mapping[str, Sequence[int]] = {
    "Q8_0": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}
"""Where in a block its numbers in fp16 stand."""


def random_blocks(kind: str, rows: int, columns: int, seed: int = 0) -> Any:
    """Return a matrix in random blocks whose scales are small and finite, as bytes."""
    generator = np.random.default_rng(seed)
    weights, num_bytes = gguf.GGML_QUANT_SIZES[Kind[kind]]
    blocks = generator.integers(0, 256, (rows * columns // weights, num_bytes), dtype=np.uint8)
    for start in _SCALES[kind]:
        scales = generator.uniform(-0.01, 0.01, (len(blocks), 1)).astype(np.float16)
        blocks[:, start : start + 2] = scales.view(np.uint8)
    return blocks.reshape(rows, -1)


def write_gguf(
    path: Path,
    tensors: Mapping[str, tuple[str, Any]],
    metadata: Mapping[str, Any] | None = None,
    architecture: str = "flux",
) -> Path:
    """Write tensors, each with its format and its bytes or numbers."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (metadata or {}).items():
        (writer.add_array if isinstance(value, list) else writer.add_string)(key, value)
    for name, (kind, data) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=Kind[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def text(content: str | bytes) -> bytes:
    encoded = content.encode() if isinstance(content, str) else content
    return struct.pack("<Q", len(encoded)) + encoded


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor_info(name: str | bytes, shape: Sequence[int], kind: int = 0, offset: int = 0) -> bytes:
    sides = struct.pack(f"<{len(shape)}Q", *shape)
    return text(name) + struct.pack("<I", len(shape)) + sides + struct.pack("<IQ", kind, offset)


def header(
    tensors: Sequence[bytes] = (),
    entries: Sequence[bytes] = (),
    num_tensors: int | None = None,
    num_entries: int | None = None,
    version: int = 3,
    data: int = 0,
) -> bytes:
    """Return a file of these parts, whatever it states of their number; `data` bytes follow, aligned."""
    counts = struct.pack(
        "<IQQ",
        version,
        len(tensors) if num_tensors is None else num_tensors,
        len(entries) if num_entries is None else num_entries,
    )
    content = b"GGUF" + counts + b"".join(entries) + b"".join(tensors)
    return content + bytes(-len(content) % 32 + data)


def quantized_file(
    path: Path, tensors: Mapping[str, Any], kinds: Mapping[str, str], architecture: str
) -> Path:
    """Write tensors of torch, matrices in the kind of the first pattern that their names match.

    Blocks of kinds that the package cannot make are random ones.
    """
    return write_gguf(
        path,
        {name: _stored(name, each.float().numpy(), kinds) for name, each in tensors.items()},
        None,
        architecture,
    )


def _stored(name: str, numbers: Any, kinds: Mapping[str, str]) -> tuple[str, Any]:
    kind = next((kind for pattern, kind in kinds.items() if re.fullmatch(pattern, name)), "F32")
    weights, _ = gguf.GGML_QUANT_SIZES[Kind[kind]]
    if numbers.ndim != 2 or numbers.shape[1] % weights:
        return "F32", numbers
    try:
        return kind, gguf.quantize(numbers, Kind[kind])
    except NotImplementedError:
        return kind, random_blocks(kind, numbers.shape[0], numbers.shape[1], len(name))
