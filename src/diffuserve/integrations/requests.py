"""Requests as other servers bring them: plain values by name, and images as the bytes of their files."""

import binascii
import io
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.requests.image_fields import mode_of
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import FIELDS, GenerationParams
from diffuserve.domain.requests.request_fields import FieldKind, RequestField
from diffuserve.domain.text.nearest import did_you_mean
from diffuserve.media.input_image import MAX_INPUT_BYTES, read_image
from diffuserve.prompts.cleaning import cleaned


def short_name(declared: RequestField) -> str:
    """Return a field's name as on the command line, such as `steps` for `num_inference_steps`."""
    return declared.flags[-1].lstrip("-").replace("-", "_")


SERVED: Final[Mapping[str, RequestField]] = {
    short_name(declared): declared for declared in FIELDS.values() if declared.kind is not FieldKind.CONTROLS
}
"""Fields whose values are plain, or lists of plain ones, by their short names."""
FORMAT: Final = "output_format"
"""Parameter beside those of a request: png, webp or jpeg, the format of image files."""
_NAMES: Final = {short_name(declared): name for name, declared in FIELDS.items()} | {
    name: name for name in FIELDS
}
_EXAMPLE: Final = "the base64 of its file, or a URL such as data:image/png;base64,iVBORw0KGgo…"


def params_of(values: Mapping[str, Any]) -> GenerationParams:
    """Return the request of values by the names of fields, long or short; `None` counts as left out.

    Texts are cleaned as a control plane does. Images are the bytes of their files, or base64 of them: a name
    would be a path on this machine. Raise `InvalidParams`.
    """
    given = _by_field(values)
    if "prompt" not in given:
        raise InvalidParams("prompt", None, "is required; describe the image")
    read = {name: _value(name, value) for name, value in given.items()}
    params = GenerationParams(**read)  # it bounds the texts before they are cleaned
    return replace(params, **cleaned(read))


@contextmanager
def said_as(values: Mapping[str, Any]) -> Iterator[None]:
    """Give errors of fields the names by which the request's values say them, by default the short ones."""
    names = {name: short for short, name in _NAMES.items() if short != name}
    names |= {_NAMES[name]: name for name in values if name in _NAMES}
    try:
        yield
    except InvalidParams as error:
        raise type(error)(names.get(error.field, error.field), error.value, error.remedy) from error


def _by_field(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are given, by the names of their fields. Raise `InvalidParams`."""
    given: dict[str, Any] = {}
    for name, value in values.items():
        if name not in _NAMES:
            raise InvalidParams(str(name), value, f"is no parameter{did_you_mean(str(name), _NAMES)}")
        if _NAMES[name] in given:
            raise InvalidParams(name, value, f"says the same as {_NAMES[name]}; give one of them")
        if value is not None:
            given[_NAMES[name]] = value
    return given


def _value(name: str, value: Any) -> Any:
    """Return a value with its images read."""
    match FIELDS[name].kind:
        case FieldKind.IMAGE:
            return _image(name, value)
        case FieldKind.IMAGES:
            several = value if isinstance(value, list | tuple) else [value]
            FIELDS[name].check(("…",) * len(several))  # how many, before any is decoded
            return tuple(_image(name, each) for each in several)
        case FieldKind.CONTROLS:
            return [_control(name, each) for each in _limited(name, value)]
    return value


def _limited(name: str, value: Any) -> Sequence[Any]:
    """Return a list that is no longer than the field allows. Raise `InvalidParams`."""
    if not isinstance(value, list | tuple):
        raise InvalidParams(name, value, "must be a list")
    if len(value) > FIELDS[name].max_length:
        raise InvalidParams(name, len(value), f"at most {FIELDS[name].max_length} are allowed")
    return value


def _control(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidParams(name, value, "must have a name and an image each")
    return {**value, "image": _image(name, value.get("image"))}


def _image(name: str, value: object) -> InputImage:
    """Return the pixels of the bytes of an image's file, or of their base64. Raise `InvalidParams`."""
    content = value if isinstance(value, bytes) else _decoded(name, value)
    return read_image(name, io.BytesIO(content), mode_of(name), name=f"{len(content):,} bytes")


def _decoded(name: str, text: object) -> bytes:
    if not isinstance(text, str):
        raise InvalidParams(name, type(text).__name__, f"must be an image: {_EXAMPLE}")
    if len(text) > 2 * MAX_INPUT_BYTES:
        raise InvalidParams(name, f"{len(text):,} characters", f"send at most {MAX_INPUT_BYTES:,} bytes")
    head, _, content = text.rpartition(",")
    if head and not (head.lower().startswith("data:") and head.lower().endswith(";base64")):
        raise InvalidParams(name, text, f"must be an image: {_EXAMPLE}")
    try:
        return b64decode(content, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidParams(name, text, f"names no image; give {_EXAMPLE}") from error
