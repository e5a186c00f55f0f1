"""Weights of 8 bits with scales, as several programs write them beside other weights of a safetensors file.

| who | weight | scale |
|---|---|---|
| ComfyUI | `X.weight` in E4M3 | `X.scale_weight`, one number; `X.scale_input` and `scaled_fp8` beside |
| ModelOpt, ComfyUI since | `X.weight` in E4M3 or I8 | `X.weight_scale`: one number, one a row, or blocks |
| DeepSeek's way | `X.weight` in E4M3 | `X.weight_scale_inv`, by blocks; in spite of its name a factor |
| plain casts | `X.weight` in E4M3 or E5M2 | none |

Importing this loads no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.quantization import Quantization
from diffuserve.models.checkpoint_files.checkpoint_file import CheckpointFile, FewBits, TensorInfo

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = Any

_FP8 = ("F8_E4M3", "F8_E5M2")
_OURS = {"F8_E4M3": Quantization.FP8, "I8": Quantization.INT8}
"""Numbers that our layers have, with a scale for each row."""
_SCALES = ("scale_weight", "weight_scale", "weight_scale_inv")
_UNUSED = ("scale_input", "input_scale", "comfy_quant")
"""Endings that belong to a weight with a scale: inputs are scaled by their own numbers here."""
_ONE = ((), (1,), (1, 1))
"""Shapes of a scale that is one number."""
_MARK = "scaled_fp8"
_FLOATS = ("F32", "F16", "BF16")
_DEQUANTIZED = "bfloat16"


def with_scales(file: CheckpointFile) -> CheckpointFile:
    """Return a file whose weights of 8 bits are read as what they stand for.

    Other files stay as they are. Raise `InvalidModel` for scales that do not fit their weights.
    """
    scales = {
        name: _scale_of(file, name)
        for name, info in file.tensors.items()
        if info.stored_as in _FP8 or (info.stored_as == "I8" and _scale_of(file, name) is not None)
    }
    return _ScaledFile(file, scales) if scales else file


@dataclass(frozen=True)
class _ScaledFile:
    """A file with weights of 8 bits: `scales` has their scales' names, `None` for those without."""

    file: CheckpointFile
    scales: Mapping[str, str | None] = field(repr=False)

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def metadata(self) -> Mapping[str, str]:
        return self.file.metadata

    @cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:
        hidden = {_MARK, *self.scales.values()}
        layers = [name.removesuffix(".weight") for name in self.scales]
        hidden |= {f"{layer}.{ending}" for layer in layers for ending in _UNUSED}
        return {
            name: replace(info, dtype=_DEQUANTIZED, few_bits=self._few_bits(name))
            if name in self.scales
            else info
            for name, info in self.file.tensors.items()
            if name not in hidden
        }

    def read(self, name: str) -> Tensor:
        import torch

        weight = self.file.read(name)
        if name not in self.scales:
            return weight
        if (scale := self.scales[name]) is None:
            return weight.to(torch.bfloat16)
        return _times(weight.to(torch.float32), self.file.read(scale).float()).to(torch.bfloat16)

    def read_quantized(self, name: str) -> Any:
        import torch

        from diffuserve.models.layers.quantized.quantization import QuantizedWeight

        scale = self.scales[name]
        stored = torch.ones(1) if scale is None else self.file.read(scale)
        return QuantizedWeight.of(self.file.read(name), stored, None)

    def _few_bits(self, name: str) -> FewBits | None:
        """Return what a matrix is kept in, exactly: one scale for each row is what our layers have."""
        info, scale = self.file.tensors[name], self.scales[name]
        if len(info.shape) != 2 or info.stored_as not in _OURS:
            return None
        rows = info.shape[0]
        shape = () if scale is None else self.file.tensors[scale].shape
        return FewBits(_OURS[info.stored_as]) if shape in (*_ONE, (rows,), (rows, 1)) else None


def _scale_of(file: CheckpointFile, name: str) -> str | None:
    """Return the name of a weight's scale, which fits it. Raise `InvalidModel` for one that does not."""
    layer = name.removesuffix(".weight")
    found = next((f"{layer}.{ending}" for ending in _SCALES if f"{layer}.{ending}" in file.tensors), None)
    if found is None or layer == name:
        return None
    weight, scale = file.tensors[name], file.tensors[found]
    if scale.stored_as not in _FLOATS:
        raise InvalidModel(
            f"{file.path}: {found} is in {scale.stored_as}, as in MXFP8; read are {', '.join(_FLOATS)}; "
            "take the model as it was published, and give --quantization fp8"
        )
    if not _fits(weight.shape, scale.shape):
        raise InvalidModel(
            f"{file.path}: {found} of shape {scale.shape} fits no {name} of shape {weight.shape}"
        )
    return found


def _fits(weight: tuple[int, ...], scale: tuple[int, ...]) -> bool:
    """Return whether a scale is one number, one for each row, or one for each of equal blocks."""
    if scale in _ONE or (scale and scale == weight[:1]):
        return True
    sides = zip(weight, scale, strict=False)
    return len(weight) == len(scale) == 2 and all(parts > 0 and not side % parts for side, parts in sides)


def _times(weight: Tensor, scale: Tensor) -> Tensor:
    """Return a weight times its scale, which fits it."""
    if scale.numel() == 1:
        return weight.mul_(scale.view(()))
    if scale.ndim == 1:
        return weight.mul_(scale.view(-1, *[1] * (weight.ndim - 1)))
    rows, columns = (side // parts for side, parts in zip(weight.shape, scale.shape, strict=True))
    return weight.mul_(scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1))
