"""Messages between ranks as bytes: JSON, and after it the bytes of tensors and images. Nothing in them runs.

A message is a value of plain types, tuples, tensors on the CPU, arrays, images, exceptions, and dataclasses
that are `Sendable`; one that names anything else is refused.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from diffuserve.domain.sendable import Sendable

_LENGTH = struct.Struct(">I")
_ERRORS = {kind.__name__: kind for kind in (MemoryError, FloatingPointError, RuntimeError)}


class BadMessage(ValueError):
    """Bytes are no message, or a value cannot be sent."""


def pack(message: object) -> bytes:
    """Return a message as bytes. Raise `BadMessage` for a value of another type."""
    blobs: list[bytes] = []
    described = json.dumps(_described(message, blobs))
    header = json.dumps([described, [len(blob) for blob in blobs]]).encode()
    return b"".join((_LENGTH.pack(len(header)), header, *blobs))


def unpack(packed: bytes) -> Any:
    """Return the message in what `pack` returned. Raise `BadMessage`."""
    try:
        [length] = _LENGTH.unpack_from(packed)
        described, sizes = json.loads(packed[_LENGTH.size : _LENGTH.size + length])
        start, blobs = _LENGTH.size + length, []
        for size in sizes:
            blobs.append(packed[start : start + size])
            start += size
        return _restored(json.loads(described), blobs)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RuntimeError, struct.error) as error:
        raise BadMessage(f"a message between ranks that is none: {error}") from error


def _described(value: Any, blobs: list[bytes]) -> Any:  # noqa: C901 (a case for each type)
    """Return a value as JSON has it; objects of JSON say what they are, and bytes are added to `blobs`."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case list():
            return [_described(item, blobs) for item in value]
        case tuple():
            return {"is": "tuple", "items": [_described(item, blobs) for item in value]}
        case Mapping():
            return {"is": "mapping", "items": [_described(list(item), blobs) for item in value.items()]}
        case bytes():
            return {"is": "bytes", "blob": _add(value, blobs)}
        case Tensor():
            content = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            dtype = str(value.dtype).removeprefix("torch.")
            return {"is": "tensor", "dtype": dtype, "shape": list(value.shape), "blob": _add(content, blobs)}
        case np.ndarray():  # a tensor's numbers, which are an array again at the other end
            return {"is": "array", "tensor": _described(torch.from_numpy(value), blobs)}
        case Image.Image():
            blob = _add(value.tobytes(), blobs)
            return {"is": "image", "mode": value.mode, "size": list(value.size), "blob": blob}
        case Exception():
            kind = next((name for name, kind in _ERRORS.items() if isinstance(value, kind)), "RuntimeError")
            return {"is": "error", "kind": kind, "text": str(value)}
        case Sendable():
            names = [field.name for field in fields(cast(Any, value))]
            own = {name: _described(getattr(value, name), blobs) for name in names}
            return {"is": "value", "class": _name(type(value)), "fields": own}
    raise BadMessage(f"a {type(value).__name__} cannot be sent to other ranks; make its class Sendable")


def _restored(value: Any, blobs: list[bytes]) -> Any:  # noqa: C901 (a case for each type)
    if isinstance(value, list):
        return [_restored(item, blobs) for item in value]
    if not isinstance(value, dict):
        return value
    match value["is"]:
        case "tuple":
            return tuple(_restored(value["items"], blobs))
        case "mapping":
            return dict(_restored(value["items"], blobs))
        case "bytes":
            return blobs[value["blob"]]
        case "tensor":
            return _tensor(value["dtype"], value["shape"], blobs[value["blob"]])
        case "array":
            return _restored(value["tensor"], blobs).numpy()
        case "image":
            return Image.frombytes(value["mode"], tuple(value["size"]), blobs[value["blob"]])
        case "error":
            return _ERRORS[value["kind"]](value["text"])
        case "value":
            own = {name: _restored(item, blobs) for name, item in value["fields"].items()}
            return _sendable()[value["class"]](**own)
    raise BadMessage(f"a message holds a {value['is']!r:.100}")


def _tensor(dtype: str, shape: list[int], content: bytes) -> Tensor:
    kind = getattr(torch, dtype)
    if not content:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(bytearray(content), dtype=kind).reshape(shape)


def _add(content: bytes, blobs: list[bytes]) -> int:
    blobs.append(content)
    return len(blobs) - 1


def _sendable() -> Mapping[str, type]:
    """Return the classes by name that messages may name: those of the modules that are loaded."""
    found, unseen = {}, Sendable.__subclasses__()
    while unseen:
        kind = unseen.pop()
        found[_name(kind)] = kind
        unseen += kind.__subclasses__()
    return found


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
