"""The contract between the registry and a model family. Importing this file loads no torch.

A family is one architecture with its code. Everything that the rest of the project asks of it goes
through this protocol, its `Capabilities` and the `Pipeline` that it loads; no module outside the family
names it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from diffuserve.domain.models.cost import CostFit, Workload
from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.parts import Parts
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.quantized.quantized_layers import QuantizedLayers
from diffuserve.models.weights.load_plan import LoadPlan

if TYPE_CHECKING:
    import torch

    from diffuserve.models.compiled.halves import CompilableBlocks
    from diffuserve.models.pipelines.base import Pipeline


@dataclass(frozen=True)
class Capabilities:
    """Abilities of a model beside drawing single images with all of its weights, as they are.

    `quantized_layers`: the layers whose weights can be kept in few bits, by component; none of an autoencoder
    is among them. With `quantizes_at_load` they are quantized then alone, and not in files. `offloads`: which
    weights may stay on the host. `spans_devices`: ranks can run the model together. `shared`: how many there
    are of what they share, by its name, where the weights can be sharded; all ranks then encode together, and
    share the text encoder's `encoder_shared`. `shares_passes`: groups of ranks can run different passes of a
    step. `compilable` returns the blocks for the compiler, by configs and headers alone. `min_decode_bytes`
    returns what decoding a clip takes at least: see `Pipeline.decode_bytes`. `takes_controlnets`: ControlNets
    can be loaded beside it; `read_spec` checks those of a folder, and tells them. `image_prompter_files`
    returns the weights of what reads its image prompts, by its path, which `read_spec` checks too.
    """

    quantized_layers: Mapping[str, QuantizedLayers] = field(default_factory=dict)
    quantizes_at_load: bool = False
    offloads: Sequence[Offload] = (Offload.NONE,)
    spans_devices: bool = True
    shared: Mapping[str, int] = field(default_factory=dict)
    encoder_shared: Mapping[str, int] = field(default_factory=dict)
    shares_passes: bool = False
    compilable: "Callable[[torch.device, torch.dtype | None], CompilableBlocks] | None" = None
    min_decode_bytes: Callable[[GenerationParams], int] | None = None
    takes_controlnets: bool = False
    image_prompter_files: Callable[[Path], Sequence[Path]] | None = None


@runtime_checkable
class PipelineFamily(Protocol):
    """An architecture: it reads its folders' configs, prices their requests and loads their weights.

    All methods except `load` read only configs and headers, and import no torch.
    """

    def read_spec(self, folder: ModelFolder) -> ModelSpec:
        """Return the capabilities and defaults of a model. Raise `InvalidModel` for an invalid config."""
        ...

    def capabilities(self, folder: ModelFolder) -> Capabilities:
        """Return what can be done with a model. Raise as `read_spec`."""
        ...

    def check_files(self, folder: ModelFolder) -> None:
        """Raise `InvalidModel` if a file that `load` reads is missing, or its header is broken."""
        ...

    def weight_folders(self, folder: ModelFolder, parts: Parts) -> Sequence[str]:
        """Return the folders of the weights that `load` reads for these parts."""
        ...

    def min_step_bytes(self, folder: ModelFolder, workload: Workload) -> int:
        """Return the minimum of `Pipeline.step_bytes` for a request, over all dtypes."""
        ...

    def default_fit(self, folder: ModelFolder, spec: ModelSpec) -> CostFit:
        """Return the cost fit that prices requests until a worker has measured one.

        Of a model that is yet to be fetched the configs alone are there.
        """
        ...

    def load(self, folder: ModelFolder, plan: LoadPlan) -> "Pipeline":
        """Load as planned, with the dtype chosen if the plan leaves it open; the files were checked before.

        Parts that are not wanted stay on torch's meta device: they have shapes, and no weights. The plan's
        quantization is chosen, and agrees with the capabilities, as its offload does. Raise `InvalidModel`
        before any weight is read, `DeviceUnavailable` or `InvalidParams` for a device or a plan that the
        model cannot use.
        """
        ...


def wanted_folders(parts: Parts, denoisers: Sequence[str], encoders: Sequence[str]) -> tuple[str, ...]:
    """Return the folders with the weights of `parts`, for a model whose autoencoder is in `vae`.

    They are in the order in which families load them, and in which they are read ahead.
    """
    return (*(encoders if parts.encoding else ()), "vae", *(denoisers if parts.denoising else ()))
