"""The contract between the registry and a model family. Importing this file loads no torch.

A family is one architecture with its code. Everything that the rest of the project asks of it goes
through this protocol and the `Pipeline` that it loads; no module outside the family names it.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from diffuserve.domain.models.cost import CostFit, Workload
from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.parts import Parts
from diffuserve.domain.models.quantization import Quantization
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.quantized_layers import QuantizedLayers
from diffuserve.parallel.plan import ParallelPlan

if TYPE_CHECKING:
    import torch

    from diffuserve.models.base import Pipeline
    from diffuserve.models.compiled.halves import CompilableBlocks
    from diffuserve.parallel.ranks import Ranks


@runtime_checkable
class PipelineFamily(Protocol):
    """An architecture: it reads its folders' configs, prices their requests and loads their weights.

    All methods but `load` read configs and headers alone and import no torch.
    """

    def read_spec(self, folder: ModelFolder) -> ModelSpec:
        """Return the abilities and defaults of a model. Raise `InvalidModel` for a wrong config."""
        ...

    def check_files(self, folder: ModelFolder) -> None:
        """Raise `InvalidModel` if a file that `load` reads is missing or broken, as far as headers tell."""
        ...

    def weight_folders(self, folder: ModelFolder, parts: Parts) -> Sequence[str]:
        """Return the folders of the weights that `load` reads for these parts."""
        ...

    def least_step_bytes(self, folder: ModelFolder, workload: Workload) -> int:
        """Return what a step of a request takes at least, whatever the dtype: see `Pipeline.step_bytes`."""
        ...

    def default_fit(self, spec: ModelSpec) -> CostFit:
        """Return the cost fit that prices requests until a worker has measured one."""
        ...

    def load(
        self,
        folder: ModelFolder,
        device: "torch.device",
        dtype: "torch.dtype | None",
        deterministic: bool,
        ranks: "Ranks | None",
        parts: Parts,
    ) -> "Pipeline":
        """Check the files, then load those of `parts` onto `device`.

        Parts that are not wanted stay on torch's meta device: they have shapes, and no weights.
        `dtype=None` means the family's choice for the checkpoint and the device. Each of `ranks` loads
        the same model. Raise `InvalidModel` before any weight is read, `DeviceUnavailable` or
        `InvalidParams` for a device or a plan that the model cannot use.
        """
        ...


def wanted_folders(parts: Parts, denoisers: Sequence[str], encoders: Sequence[str]) -> tuple[str, ...]:
    """Return the folders of the weights that `parts` are in, of a model whose autoencoder is in `vae`.

    They are in the order in which families load them, which is that in which they are read ahead.
    """
    return (*(encoders if parts.encoding else ()), "vae", *(denoisers if parts.denoising else ()))


@runtime_checkable
class QuantizableFamily(PipelineFamily, Protocol):
    """An architecture whose weights can be kept in few bits."""

    def quantized_layers(self, folder: ModelFolder) -> Mapping[str, QuantizedLayers]:
        """Return which layers of each component are quantized; there is none of an autoencoder."""
        ...

    def load(  # noqa: PLR0913 (what a pipeline is loaded by)
        self,
        folder: ModelFolder,
        device: "torch.device",
        dtype: "torch.dtype | None",
        deterministic: bool,
        ranks: "Ranks | None",
        parts: Parts,
        quantization: Quantization = Quantization.NONE,
    ) -> "Pipeline":
        """Load as every family does, with those layers quantized."""
        ...


@runtime_checkable
class OffloadableFamily(PipelineFamily, Protocol):
    """An architecture whose weights may stay on the host. Its pipelines are `OffloadablePipeline`s."""

    def offloads(self, folder: ModelFolder) -> Sequence[Offload]:
        """Return which of a model's weights may stay on the host until they are used."""
        ...


@runtime_checkable
class CuttableFamily(PipelineFamily, Protocol):
    """An architecture whose weights can be cut over GPUs.

    Where `ranks.plan` says so, each rank loads its part of them, and all ranks encode together.
    """

    def check_cut(self, folder: ModelFolder, plan: ParallelPlan) -> None:
        """Raise `InvalidParams` if the ranks of the plan cannot share a model's weights evenly."""
        ...


@runtime_checkable
class CompilableFamily(PipelineFamily, Protocol):
    """An architecture whose blocks can be compiled. Its pipelines are `CompilablePipeline`s."""

    def compilable(
        self, folder: ModelFolder, device: "torch.device", dtype: "torch.dtype | None"
    ) -> "CompilableBlocks":
        """Return a model's blocks for the compiler; only its configs and headers are read."""
        ...


@runtime_checkable
class VideoFamily(PipelineFamily, Protocol):
    """An architecture that generates clips."""

    def least_decode_bytes(self, folder: ModelFolder, params: GenerationParams) -> int:
        """Return the bytes that decoding a clip takes at least: see `Pipeline.decode_bytes`."""
        ...
