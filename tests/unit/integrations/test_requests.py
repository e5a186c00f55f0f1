"""Requests of other servers: every declared field by its short name, and no path of this machine."""

import base64
import io
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.integrations.requests import params_of, said_as


def png(size: tuple[int, int] = (8, 6)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, "red").save(buffer, "PNG")
    return buffer.getvalue()


def test_fields_go_by_their_short_and_their_long_names() -> None:
    values = {"prompt": "a  red circle", "steps": 4, "guidance_scale": 2.5, "num_images": 2, "seed": None}
    assert params_of(values) == GenerationParams(
        prompt="a red circle", num_inference_steps=4, guidance_scale=2.5, num_images=2
    )


@pytest.mark.parametrize("image", [png(), base64.b64encode(png()).decode()], ids=["bytes", "base64"])
def test_images_are_the_content_of_files(image: Any) -> None:
    url = f"data:image/png;base64,{base64.b64encode(png()).decode()}"
    [first, second] = params_of({"prompt": "a circle", "image": [image, url]}).images
    assert isinstance(first, InputImage)
    assert first == second
    assert (first.width, first.height) == (8, 6)


def test_controls_have_an_image_each() -> None:
    params = params_of({"prompt": "a circle", "controls": [{"name": "canny", "image": png(), "weight": 0.5}]})
    assert params.controls is not None
    [use] = params.controls
    assert isinstance(use.image, InputImage)
    assert use.weight == 0.5


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "prompt=None: is required"),
        ({"prompt": " "}, "must not be empty"),
        ({"prompt": "x", "stepz": 3}, "did you mean 'steps'?"),
        ({"prompt": "x", "steps": 3, "num_inference_steps": 3}, "says the same as"),
        ({"prompt": "x", "steps": "3"}, "steps='3': must be a whole number"),
        ({"prompt": "x", "image": "PATH"}, "names no image; give the base64"),
        ({"prompt": "x", "image": "https://example.com/a.png"}, "names no image"),
        ({"prompt": "x", "image": [7]}, "must be an image"),
        ({"prompt": "x", "image": b"PNG"}, "image='3 bytes': is no image"),
        ({"prompt": "x", "image": ["PATH"] * 99}, "images are allowed"),
        ({"prompt": "x", "controls": ["canny=PATH"]}, "must have a name and an image each"),
        ({"prompt": "x", "controls": [{"name": "canny", "image": "PATH"}]}, "names no image"),
        ({"prompt": "x", "adapters": [{"name": "ink", "digest": "00"}]}, "must have a name"),
    ],
)
def test_bad_values_are_refused_in_the_words_of_the_request(
    values: dict[str, Any], words: str, tmp_path: Path
) -> None:
    """An image by its path is never read, though the file is there."""
    path = tmp_path / "circle.png"
    path.write_bytes(png())
    there = {name: _with_path(value, str(path)) for name, value in values.items()}
    with pytest.raises(InvalidParams, match=re.escape(words)), said_as(there):
        params_of(there)


def _with_path(value: Any, path: str) -> Any:
    if isinstance(value, list):
        return [_with_path(each, path) for each in value]
    if isinstance(value, dict):
        return {name: _with_path(each, path) for name, each in value.items()}
    return value.replace("PATH", path) if isinstance(value, str) else value
