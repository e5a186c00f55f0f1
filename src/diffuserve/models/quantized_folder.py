"""Writes a model's folder with quantized weights, which loads faster and takes less space on the disk."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from diffuserve.domain.errors import InvalidModel, InvalidParams
from diffuserve.domain.models.quantization import Quantization
from diffuserve.models.folders.folder import SETTINGS_FILE, ModelFolder
from diffuserve.models.folders.read_files import small_files
from diffuserve.models.layers.quantized.quantization import can_quantize, quantize_weight
from diffuserve.models.layers.quantized.quantized_layers import QuantizedLayers
from diffuserve.models.registry import open_quantizable
from diffuserve.models.weights.stored_quantization import stored_quantization

_INDEX = "*.safetensors.index.json"
_INDEX_NAME = "model.safetensors.index.json"
_READABLE = 0o644


def write_quantized(model: str, target: Path, quantization: Quantization) -> None:
    """Write the folder of a model with its weights quantized; `target` must not be there yet.

    It appears once it is whole. Raise `InvalidParams` if there is something at `target`, `InvalidModel` if
    the model is quantized already or cannot be, and as `open_model` does.
    """
    folder, family, components = open_quantizable(model)
    family.check_files(folder)
    if (found := stored_quantization(folder, tuple(components))) is not Quantization.NONE:
        raise InvalidModel(f"{folder.path}: its weights are quantized to {found} already")
    if target.exists():
        raise InvalidParams("folder", str(target), "is there already; give the path of a new folder")
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    _copy_root(folder, partial)
    for component in _components(folder):
        _copy_component(folder, component, partial / component, has_weights=component not in components)
    for component, layers in components.items():
        _write_component(folder, component, partial / component, layers, quantization)
    partial.rename(target)


def _copy_root(folder: ModelFolder, target: Path) -> None:
    """Copy what is beside the components, under the model's own name."""
    shutil.copyfile(folder.path / folder.index_file, target / folder.index_file)
    settings = {"name": folder.name, **folder.settings}
    (target / SETTINGS_FILE).write_text(json.dumps(settings, indent=2) + "\n")


def _components(folder: ModelFolder) -> Iterator[str]:
    for name in folder.index:
        if not name.startswith("_") and (folder.path / name).is_dir():
            yield name


def _copy_component(folder: ModelFolder, component: str, target: Path, has_weights: bool) -> None:
    """Copy a component's files, of its weights those alone that are loaded."""
    target.mkdir()
    source = folder.path / component
    weights = folder.weights(component) if has_weights and any(source.glob("*.safetensors")) else []
    indexes = () if has_weights else set(source.glob(_INDEX))
    for file in (*weights, *(each for each in small_files(source) if each not in indexes)):
        shutil.copyfile(file, target / file.name)


def _write_component(
    folder: ModelFolder, component: str, target: Path, layers: QuantizedLayers, quantization: Quantization
) -> None:
    """Write a component file by file, and an index if it has several."""
    weight_map: dict[str, str] = {}
    files = folder.weights(component)
    for file in files:
        tensors = dict(_quantized_tensors(file, layers, quantization))
        save_file(tensors, target / file.name, metadata={"format": "pt"})
        (target / file.name).chmod(_READABLE)  # `save_file` leaves weights that only their owner may read
        weight_map |= dict.fromkeys(tensors, file.name)
    if len(files) > 1:
        index = {"metadata": {}, "weight_map": weight_map}
        (target / _INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n")


def _quantized_tensors(
    file: Path, layers: QuantizedLayers, quantization: Quantization
) -> Iterator[tuple[str, Tensor]]:
    with safe_open(file, framework="pt") as reader:
        for name in reader.keys():  # noqa: SIM118 (a reader is no dict)
            tensor: Tensor = reader.get_tensor(name)
            layer, _, attribute = name.rpartition(".")
            kind = layers.kind_of(layer, quantization) if attribute == "weight" else Quantization.NONE
            if kind is Quantization.NONE or not can_quantize(kind, tensor.shape[-1]):
                yield name, tensor.contiguous()
                continue
            for ending, part in quantize_weight(tensor, kind).tensors.items():
                yield f"{name}{ending}", part.contiguous()
