"""Quantized weights in files: the names of their tensors, and a folder's quantization.

Importing this loads no torch.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.quantization import Quantization
from diffuserve.models.folders.folder import ModelFolder

_COMPANIONS = (".weight_scale", ".weight_zero")
_TORCHAO = {"._weight_qdata": ".weight", "._weight_scale": ".weight_scale"}
_KINDS = {"I8": Quantization.INT8, "F8_E4M3": Quantization.FP8, "U8": Quantization.INT4}
_BY_PRECEDENCE = (Quantization.INT4, Quantization.FP8, Quantization.INT8)
_REMEDY = "take the model as it was published, and give --quantization int8 or fp8"


@dataclass(frozen=True)
class StoredWeight:
    """A weight in a file: its name in plain checkpoints, and the tensors that hold it.

    `scale`, and in 4 bits `zero`, are the tensors that bring quantized numbers back.
    """

    name: str
    tensor: str
    scale: str | None = None
    zero: str | None = None


def is_companion(name: str) -> bool:
    """Return whether a tensor only brings a quantized weight back."""
    return _plain(name).endswith(_COMPANIONS)


def stored_weights(names: Iterable[str]) -> Iterator[StoredWeight]:
    """Yield the weights of a file by the names of its tensors; torchao has other ones for the same."""
    given = {_plain(name): name for name in names}
    for plain, name in given.items():
        weight, _, ending = plain.rpartition(".")
        if ending in ("weight_scale", "weight_zero") and f"{weight}.weight" in given:
            continue
        yield StoredWeight(plain, name, given.get(f"{plain}_scale"), given.get(f"{plain}_zero"))


def choose_quantization(
    folder: ModelFolder, components: Sequence[str], wanted: Quantization | None
) -> Quantization:
    """Return the quantization to load a model with: its folder's, or else the `wanted` one.

    Raise `InvalidModel` if the folder is quantized otherwise, or in a format that is not read.
    """
    found = stored_quantization(folder, components)
    if found is Quantization.NONE:
        return wanted or Quantization.NONE
    if wanted not in (None, found):
        raise InvalidModel(
            f"{folder.path}: its weights are quantized to {found} already, which quantization="
            f"{wanted} cannot undo; leave the option out, or take the model as it was published"
        )
    return found


def stored_quantization(folder: ModelFolder, components: Sequence[str]) -> Quantization:
    """Return the quantization of the weights of these components. Raise `InvalidModel` as above.

    Some may be in 8-bit integers beside others in other numbers, which then give the folder its kind.
    """
    found = {kind for component in components for kind in _component_kinds(folder, component)}
    return next((kind for kind in _BY_PRECEDENCE if kind in found), Quantization.NONE)


def _component_kinds(folder: ModelFolder, component: str) -> set[Quantization]:
    _check_format(folder, component)
    return {kind for file in folder.weights(component) for kind in _file_kinds(file)}


def _file_kinds(file: Path) -> set[Quantization]:
    from safetensors import safe_open

    with safe_open(file, framework="numpy") as reader:
        weights = [stored for stored in stored_weights(reader.keys()) if stored.scale is not None]
        codes = {reader.get_slice(stored.tensor).get_dtype() for stored in weights}
    unknown = sorted(codes - _KINDS.keys())
    if unknown:
        raise InvalidModel(f"{file}: quantized weights in {', '.join(unknown)} are not read; {_REMEDY}")
    return {_KINDS[code] for code in codes}


def _check_format(folder: ModelFolder, component: str) -> None:
    """Raise `InvalidModel` for formats whose numbers mean something else."""
    config = folder.path / component / "config.json"
    stated = folder.json(f"{component}/config.json").get("quantization_config") if config.is_file() else None
    method = stated.get("quant_method") if isinstance(stated, dict) else None
    if method not in (None, "torchao"):
        raise InvalidModel(f"{config}: weights quantized by {method} are not read; {_REMEDY}")


def _plain(name: str) -> str:
    for theirs, ours in _TORCHAO.items():
        if name.endswith(theirs):
            return name.removesuffix(theirs) + ours
    return name
