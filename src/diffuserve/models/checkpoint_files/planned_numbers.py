"""Which numbers the tensors of an imported model are written in, and that in words."""

from collections import Counter
from collections.abc import Iterator, Mapping

import torch

from diffuserve.domain.models.quantization import Quantization
from diffuserve.models.checkpoint_files.checkpoint_file import CheckpointFile
from diffuserve.models.checkpoint_files.deferred import Deferred
from diffuserve.models.checkpoint_files.few_bits import FewBitsReader
from diffuserve.models.checkpoint_files.tensor_writer import PlannedTensor
from diffuserve.models.layers.quantized.quantized_layers import QuantizedLayers

_PLAIN = {"F64", "F32", "F16", "BF16"}
_KEPT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def plan_tensors(
    file: CheckpointFile, tensors: Mapping[str, Deferred], layers: QuantizedLayers | None
) -> dict[str, PlannedTensor]:
    """Return what is written for the tensors of a component, of `layers` in their few bits."""
    reader, planned = FewBitsReader(file), dict[str, PlannedTensor]()
    for name, tensor in tensors.items():
        kept = reader.planned(name, tensor.pieces) if _may_stay(name, layers) else None
        planned |= kept or {name: _plain(tensor)}
    return planned


def describe_numbers(
    file: CheckpointFile, tensors: Mapping[str, Deferred], planned: Mapping[str, PlannedTensor]
) -> Iterator[str]:
    """Yield in words what became of those tensors that the file has in few bits."""
    kept, changed = Counter[str](), Counter[str]()
    for name, tensor in tensors.items():
        for stored in {file.tensors[rows.name].stored_as for rows in tensor.pieces or ()} - _PLAIN:
            (kept if f"{name}_scale" in planned else changed)[stored] += 1
    if kept:
        yield f"weights in few bits, unpacked at each step where no kernel has them: {_counted(kept)}"
    if changed:
        yield f"weights that become bfloat16: {_counted(changed)}"


def _counted(stored: Counter[str]) -> str:
    return ", ".join(f"{count} in {name}" for name, count in sorted(stored.items()))


def _may_stay(name: str, layers: QuantizedLayers | None) -> bool:
    layer, _, attribute = name.rpartition(".")
    if layers is None or attribute != "weight":
        return False
    return layers.kind_of(layer, Quantization.INT8) is not Quantization.NONE


def _plain(tensor: Deferred) -> PlannedTensor:
    """Return a tensor to write, in its own numbers if a model can be loaded in these, else in bfloat16."""
    dtype = tensor.meta.dtype if tensor.meta.dtype in _KEPT_DTYPES else torch.bfloat16
    return PlannedTensor(tuple(tensor.meta.shape), dtype, tensor.compute)
