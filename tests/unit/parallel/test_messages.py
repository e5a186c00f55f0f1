"""Messages between ranks: what is sent arrives, and nothing else is made of bytes."""

import json
import os
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from PIL import Image

from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.requests.request_bounds import MAX_SEED
from diffuserve.domain.sendable import Sendable
from diffuserve.parallel.messages import BadMessage, pack, unpack

_IMAGE = InputImage("stripes", 2, 1, "RGB", b"abcdef")


@dataclass(frozen=True)
class Joining(Sendable):
    """A dataclass with another one in it."""

    params: GenerationParams
    latents: torch.Tensor | None = None


@pytest.mark.parametrize(
    "message",
    [
        None,
        {"steps": ["a", 1, 2.5, True, None]},
        ("a", ["b", ("c",)], {1: (2,)}),
        float("inf"),
        b"\x00\xff",
        "ü \ud800",
        Joining(GenerationParams(prompt="a star", seed=MAX_SEED, image=(_IMAGE, _IMAGE), strength=0.1)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_plain_values_and_dataclasses_arrive_as_they_were(message: Any) -> None:
    arrived = unpack(pack(message))
    assert arrived == message
    assert type(arrived) is type(message)


def test_pixels_arrive() -> None:
    assert unpack(pack(_IMAGE)).pixels == _IMAGE.pixels


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]
)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3, 4)])
def test_tensors_arrive_to_the_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    sent = Joining(GenerationParams(prompt="a star"), tensor)
    arrived = unpack(pack((b"odd", sent)))[1].latents
    assert arrived.dtype == dtype
    assert torch.equal(arrived, tensor)


def test_a_tensor_that_is_not_contiguous_arrives() -> None:
    tensor = torch.arange(6.0).reshape(2, 3).T
    assert torch.equal(unpack(pack(tensor)), tensor)


def test_images_arrive() -> None:
    image = Image.effect_noise((5, 3), 90).convert("RGB")
    arrived = unpack(pack([image]))[0]
    assert (arrived.mode, arrived.size, arrived.tobytes()) == (image.mode, image.size, image.tobytes())


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError("full"), MemoryError),
        (FloatingPointError("nan"), FloatingPointError),
        (OSError("full"), RuntimeError),
    ],
)
def test_errors_arrive_as_one_of_three_kinds(error: Exception, kind: type[Exception]) -> None:
    arrived = unpack(pack(error))
    assert type(arrived) is kind
    assert str(arrived) == str(error)


class Unmarked:
    """An object of a class that no message may have."""


@pytest.mark.parametrize("value", [Unmarked(), {1, 2}, print, GenerationParams])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(BadMessage, match="cannot be sent"):
        pack([value])


def _bytes(described: object) -> bytes:
    header = json.dumps([json.dumps(described), []]).encode()
    return len(header).to_bytes(4) + header


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\x80\x04\x95\x00\x00\x00\x00.",
        _bytes({"is": "value", "class": "os.system", "fields": {"command": "exit"}}),
        _bytes({"is": "value", "class": "subprocess.Popen", "fields": {"args": ["true"]}}),
        _bytes({"is": "error", "kind": "SystemExit", "text": ""}),
        _bytes({"is": "tensor", "dtype": "load", "shape": [], "blob": 0}),
        _bytes({"is": "tensor", "dtype": "float32", "shape": [1 << 60], "blob": 0}),
        _bytes({"is": "nothing that is known"}),
        _bytes({}),
    ],
)
def test_bytes_that_are_no_message_are_refused(bad: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "system", lambda _command: pytest.fail("it ran"))
    with pytest.raises(BadMessage):
        unpack(bad)
