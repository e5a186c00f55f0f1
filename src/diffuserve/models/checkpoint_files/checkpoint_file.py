"""What a file of weights is to the rest of this room, whatever its format. Importing this loads no torch.

A reader of another format is a class with these members, made by a function `(path: Path) -> CheckpointFile`
that raises `InvalidModel` (the file, the value, the remedy) for what it cannot read. Opening reads the header
alone, checks every bound against the file's size, and loads no torch: `tensors` and `metadata` serve
`diffuserve doctor` and refusals too. Names and shapes are those of the *original* layout as its authors
published it, so that one table of keys recognizes a model in every format: a reader renames, turns shapes
around (GGUF has them innermost first) and leaves out scales, which belong to the weight that they scale.

    file = open_checkpoint(Path("model.safetensors"))
    file.tensors["img_in.weight"]   # TensorInfo(shape=(3072, 64), dtype="bfloat16", stored_as="BF16")
    file.metadata.get("license")
    file.read("img_in.weight")      # a tensor in memory of its own, of that shape and dtype

`.safetensors` is read by `safetensors_file`, which `fp8_file.with_scales` wraps where weights have scales;
`.gguf` by `gguf_file.open_gguf`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from diffuserve.domain.models.quantization import Quantization

if TYPE_CHECKING:
    from torch import Tensor
else:  # importing torch takes a second, and only `read` needs it
    Tensor = Any


@dataclass(frozen=True)
class FewBits:
    """Numbers of our quantized layers: their kind, and how many share a scale, `None` for those of a row."""

    kind: Quantization
    group: int | None = None


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of a file: `dtype` by torch's name is what `read` returns, `stored_as` the format's own name.

    `dtype` is "bfloat16" for what is stored as "BF16", and for what is dequantized, such as "Q4_K", the
    floating-point numbers that it becomes. `few_bits` are those that `read_quantized` keeps it in, if any.
    """

    shape: tuple[int, ...]
    dtype: str
    stored_as: str
    few_bits: FewBits | None = None


@runtime_checkable
class CheckpointFile(Protocol):
    """A file of weights whose header was read and checked; tensors are read one by one, when asked for."""

    @property
    def path(self) -> Path: ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """The tensors by name, without those that only scale another."""
        ...

    @property
    def metadata(self) -> Mapping[str, str]:
        """Statements of the file about itself, such as `modelspec.title`; others' text."""
        ...

    def read(self, name: str) -> Tensor:
        """Return a tensor in memory of its own, dequantized. Raise `InvalidModel` if it cannot be read.

        A second call reads again: nothing is kept, so that memory holds one tensor at a time.
        """
        ...

    def read_quantized(self, name: str) -> Any:
        """Return a weight that has `few_bits` as a `QuantizedWeight` of our layers. Raise as `read`."""
        ...
