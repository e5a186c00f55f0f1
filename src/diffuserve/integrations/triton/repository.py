"""The model repository that Triton serves: a model's `config.pbtxt`, and the file that Triton starts."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.requests.request_fields import FieldKind, RequestField, Topic
from diffuserve.integrations.places import new_place
from diffuserve.integrations.requests import FORMAT, SERVED

INPUTS: Final[Mapping[str, RequestField]] = {
    name: declared
    for name, declared in SERVED.items()
    if declared.topic is not Topic.CLIP and name != "lyrics"
}
"""Inputs of the model: the parameters of images, by their short names."""
OUTPUTS: Final[Mapping[str, tuple[str, tuple[int, ...]]]] = {
    "images": ("TYPE_UINT8", (-1, -1, -1, -1)),
    "files": ("TYPE_STRING", (-1,)),
    "seeds": ("TYPE_INT64", (-1,)),
    "warnings": ("TYPE_STRING", (-1,)),
}
"""Types and shapes of the outputs: pixels by image, row, column and color; image files; a seed each."""

_TYPES: Final = {FieldKind.INTEGER: "TYPE_INT64", FieldKind.NUMBER: "TYPE_FP64"}
SEVERAL: Final = (FieldKind.IMAGES, FieldKind.ADAPTERS)
_MODEL: Final = '''"""diffuserve behind Triton's Python backend."""

from diffuserve.integrations.triton.model import TritonPythonModel

__all__ = ["TritonPythonModel"]
'''


def write_repository(folder: Path, name: str, settings: Mapping[str, str], device: str | None) -> Path:
    """Write the model `name` into a model repository, and return its folder.

    `settings` are diffuserve's own by their names, and `device` is "cpu", "cuda" or "cuda:n"; by default
    Triton chooses. Raise `InvalidParams` for another device, and as `new_place` does.
    """
    model, text = new_place(folder, name), config(name, settings, device)
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(text, "utf-8")
    (model / "1" / "model.py").write_text(_MODEL, "utf-8")
    return model


def config(name: str, settings: Mapping[str, str], device: str | None = None) -> str:
    """Return a `config.pbtxt`. Triton forms no batches: the engine's own do the same, step by step."""
    parts = [
        f"name: {json.dumps(name)}",
        'backend: "python"',
        "# The engine batches by steps, across sizes and step counts; dynamic_batching would only delay.",
        "max_batch_size: 0",
        _list("input", _inputs()),
        _list("output", (_tensor(name, *shape) for name, shape in OUTPUTS.items())),
        _instances(device),
        *(_parameter(*setting) for setting in settings.items()),
    ]
    return "\n".join(parts) + "\n"


def _inputs() -> Iterator[str]:
    for name, declared in INPUTS.items():
        dims = (-1,) if declared.kind in SEVERAL else (1,)
        yield _tensor(name, _TYPES.get(declared.kind, "TYPE_STRING"), dims, name != "prompt")
    yield _tensor(FORMAT, "TYPE_STRING", (1,), is_optional=True)


def _tensor(name: str, kind: str, dims: Iterable[int], is_optional: bool = False) -> str:
    shape = ", ".join(map(str, dims))
    return f'{{ name: "{name}" data_type: {kind} dims: [ {shape} ]{" optional: true" * is_optional} }}'


def _list(name: str, entries: Iterable[str]) -> str:
    return f"{name} [\n  " + ",\n  ".join(entries) + "\n]"


def _instances(device: str | None) -> str:
    """Return one instance for each GPU, or one; several on one device would share no steps."""
    if device is None:
        return "instance_group [ { count: 1 } ]"
    if device == "cpu":
        return "instance_group [ { count: 1 kind: KIND_CPU } ]"
    match = re.fullmatch(r"cuda(?::(\d+))?", device)
    if match is None:
        raise InvalidParams("device", device, "must be cpu or cuda[:n]")
    chosen = f" gpus: [ {match[1]} ]" if match[1] else ""
    return f"instance_group [ {{ count: 1 kind: KIND_GPU{chosen} }} ]"


def _parameter(name: str, text: str) -> str:
    return f"parameters {{ key: {json.dumps(name)} value: {{ string_value: {json.dumps(text)} }} }}"
