"""Writes a safetensors file tensor by tensor: the library's own writer holds all of them in memory."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffuserve.models.weights.device_reader import bytes_of

_ALIGNMENT = 8  # of the tensors' bytes, as the library writes them
_CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int8: "I8",
    torch.uint8: "U8",
}


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor to write: its shape and dtype are known before its content."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    compute: Callable[[], Tensor]

    @property
    def num_bytes(self) -> int:
        return self.dtype.itemsize * torch.Size(self.shape).numel()


def write_tensors(
    path: Path, tensors: Mapping[str, PlannedTensor], report: Callable[[int], None] = lambda _: None
) -> None:
    """Write tensors, each computed when its turn comes; `report` receives the bytes written.

    The file is on the disk when this returns. Tensors of wide numbers come first, so that all are aligned.
    """
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    with path.open("wb") as file:
        file.write(_header(dict(ordered)))
        for name, planned in ordered:
            _write(file, name, planned)
            report(planned.num_bytes)
        file.flush()
        os.fsync(file.fileno())


def _write(file: Any, name: str, planned: PlannedTensor) -> None:
    tensor = planned.compute().to(planned.dtype).contiguous()
    assert tuple(tensor.shape) == planned.shape, f"{name}: {tuple(tensor.shape)} is not {planned.shape}"
    array: Any = bytes_of(tensor).numpy()
    file.write(memoryview(array))


def _header(tensors: Mapping[str, PlannedTensor]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, planned in tensors.items():
        end = offset + planned.num_bytes
        entries[name] = {
            "dtype": _CODES[planned.dtype],
            "shape": list(planned.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
