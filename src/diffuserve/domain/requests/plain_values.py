"""Values of a request as JSON holds them, and back."""

from collections.abc import Mapping
from typing import Any

from diffuserve.domain.requests.adapter_use import AdapterUse
from diffuserve.domain.requests.control_use import ControlUse
from diffuserve.domain.requests.input_image import InputImage


def plain(value: Any) -> Any:
    """Return a field's value, ready for JSON; images are named, not included."""
    if isinstance(value, InputImage | AdapterUse | ControlUse):
        return value.to_dict()
    return [plain(item) for item in value] if isinstance(value, tuple | list) else value


def restored(value: Any) -> Any:
    """Return a field's value from the output of `plain`. Raise `InvalidParams`."""
    if isinstance(value, Mapping):
        if "name" not in value:
            return InputImage.from_dict(value)
        return ControlUse.of(value) if "image" in value else AdapterUse.from_dict(value)
    return tuple(restored(item) for item in value) if isinstance(value, list) else value
