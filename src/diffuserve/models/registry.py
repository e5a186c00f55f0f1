"""Models by name: their specs and their pipelines. Importing this file loads no family and no torch.

Families of other packages are entry points of the group `diffuserve.families`: the name is the
`_class_name` of a `model_index.json`, the object a `PipelineFamily`.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from diffuserve.domain.errors import DiffuserveError, InvalidModel, InvalidParams
from diffuserve.domain.models.cost import CostFit
from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.parts import ALL_PARTS, Parts
from diffuserve.domain.models.quantization import Quantization
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.workers.worker import ModelOffer
from diffuserve.models.family import (
    CompilableFamily,
    CuttableFamily,
    OffloadableFamily,
    PipelineFamily,
    QuantizableFamily,
    VideoFamily,
)
from diffuserve.models.folders.folder import ModelFolder, find_local_model, open_configs, open_model
from diffuserve.models.weights.read_ahead import start_reading
from diffuserve.models.weights.stored_quantization import choose_quantization
from diffuserve.parallel.plan import ParallelPlan

if TYPE_CHECKING:
    import torch

    from diffuserve.models.base import Pipeline
    from diffuserve.parallel.ranks import Ranks

log = logging.getLogger(__name__)

ENTRY_POINT_GROUP = "diffuserve.families"
_FLUX = "diffuserve.models.flux.family:FLUX"
_STABLE_DIFFUSION = "diffuserve.models.stable_diffusion.family:STABLE_DIFFUSION"
_WAN = "diffuserve.models.wan.family:WAN"
_PIPELINES = {
    "FluxFillPipeline": _FLUX,
    "FluxImg2ImgPipeline": _FLUX,
    "FluxInpaintPipeline": _FLUX,
    "FluxKontextPipeline": _FLUX,
    "FluxPipeline": _FLUX,
    "LatentConsistencyModelPipeline": _STABLE_DIFFUSION,
    "StableDiffusionImg2ImgPipeline": _STABLE_DIFFUSION,
    "StableDiffusionInpaintPipeline": _STABLE_DIFFUSION,
    "StableDiffusionPipeline": _STABLE_DIFFUSION,
    "StableDiffusionXLImg2ImgPipeline": _STABLE_DIFFUSION,
    "StableDiffusionXLInpaintPipeline": _STABLE_DIFFUSION,
    "StableDiffusionXLPipeline": _STABLE_DIFFUSION,
    "WanImageToVideoPipeline": _WAN,
    "WanPipeline": _WAN,
}
_BUILT_IN = tuple(EntryPoint(name, value, ENTRY_POINT_GROUP) for name, value in _PIPELINES.items())


def load_pipeline(  # noqa: PLR0913 (what `PipelineFamily.load` is given)
    model: str,
    device: "torch.device",
    dtype: "torch.dtype | None" = None,
    deterministic: bool = False,
    ranks: "Ranks | None" = None,
    parts: Parts = ALL_PARTS,
    quantization: Quantization | None = None,
    offload: Offload = Offload.NONE,
) -> "Pipeline":
    """Load a bundled model, a diffusers folder or a hub id onto `device`, or `parts` of it.

    With `ranks` the model is loaded on each of them, and every denoising step is shared. Weights of an
    `offload` never are on the device all at once.
    `dtype=None` means the family's choice for the checkpoint and the device, and `quantization=None` the
    folder's own. Raise `ModelNotFound` or `InvalidModel` before any weight is read.
    """
    folder, family = _open(model)
    chosen = _choose_quantization(folder, family, quantization)
    plan = None if ranks is None else ranks.plan
    _check_plan(folder, family, chosen, plan)
    given = (folder, device, dtype, deterministic, ranks, parts)
    if chosen is Quantization.NONE or not isinstance(family, QuantizableFamily):
        load: Callable[[], Pipeline] = partial(family.load, *given)
    else:
        load = partial(family.load, *given, chosen)
    if chosen is Quantization.INT4:
        log.warning(
            "%s is loaded in 4 bits: that saves memory alone; steps take longer, and images differ visibly "
            "from those of its own weights",
            folder.name,
        )
    if offload is Offload.NONE:
        return load()
    _check_offload(folder, family, offload, plan)
    from diffuserve.models.offload.components import load_offloaded

    return load_offloaded(load, offload, chosen, device)


def num_weight_bytes(model: str, parts: Parts) -> int:
    """Return the size of the files whose weights are loaded for `parts`. Raise as `load_pipeline`."""
    return sum(file.stat().st_size for file in weight_files(model, parts))


def weight_files(model: str, parts: Parts) -> list[Path]:
    """Return the files whose weights are loaded for `parts`. Raise as `load_pipeline`."""
    folder, family = _open(model)
    return folder.weight_files(family.weight_folders(folder, parts))


def weight_folders(model: str, parts: Parts) -> Sequence[str]:
    """Return the folders of the weights that are loaded for `parts`. Raise as `read_offer`."""
    folder = open_configs(model)
    return load_family(_find_family(folder)).weight_folders(folder, parts)


def read_weights_ahead(
    model: str, parts: Parts, replaced: Callable[[list[Path]], list[Path]] = list
) -> Thread:
    """Have the weights read while torch is imported, if they are on this machine; it raises nothing.

    `replaced` returns the files that are loaded in place of the model's own.
    """

    def find() -> list[Path]:
        try:
            return replaced(weight_files(model, parts)) if find_local_model(model) is not None else []
        except DiffuserveError:
            return []  # whoever loads the model says why

    return start_reading(find)


def read_spec(model: str) -> ModelSpec:
    """Return the abilities of a model, from its folder's configs alone. Raise as `load_pipeline`."""
    return read_offer(model)[0]


def read_offer(model: str) -> tuple[ModelSpec, CostFit]:
    """Return a model's spec and its family's default cost fit, by its configs. Raise as `load_pipeline`."""
    folder = open_configs(model)
    family = load_family(_find_family(folder))
    spec = family.read_spec(folder)
    return spec, family.default_fit(spec)


@dataclass(frozen=True)
class CheckedModel:
    """A model whose files are there and whole; nothing of it is loaded."""

    spec: ModelSpec
    folder: ModelFolder
    family: PipelineFamily

    def num_weight_bytes(self, parts: Parts) -> int:
        """Return the size of the files whose weights are loaded for `parts`."""
        return self.folder.num_weight_bytes(self.family.weight_folders(self.folder, parts))

    def least_bytes(self, params: GenerationParams) -> int:
        """Return what a request, whose defaults are filled in, takes at least: a step, or decoding a clip."""
        step = self.family.least_step_bytes(self.folder, self.spec.workload(params))
        if (params.num_frames or 1) == 1 or not isinstance(self.family, VideoFamily):
            return step
        return max(step, self.family.least_decode_bytes(self.folder, params))


def check_model(
    model: str,
    quantization: Quantization | None = None,
    offload: Offload = Offload.NONE,
    plan: ParallelPlan | None = None,
) -> CheckedModel:
    """Check a model as `load_pipeline` does, without torch, and return its spec. Raise as it does.

    `plan` is that of the ranks that will load it.
    """
    folder, family = _open(model)
    family.check_files(folder)
    chosen = _choose_quantization(folder, family, quantization)
    _check_offload(folder, family, offload, plan)
    _check_plan(folder, family, chosen, plan)
    return CheckedModel(family.read_spec(folder), folder, family)


def read_local_offer(model: str) -> ModelOffer | None:
    """Return what a worker will offer; `None` for a model of the hub that is not on this machine."""
    if find_local_model(model) is None:
        return None
    spec, fit = read_offer(model)
    return ModelOffer(spec=spec.to_dict(), fit=fit.to_dict())


def find_quantization(model: str, wanted: Quantization | None) -> Quantization:
    """Return how a model is loaded where `wanted` is asked for. Raise as `load_pipeline`."""
    return _choose_quantization(*_open(model), wanted)


def open_quantizable(model: str) -> tuple[ModelFolder, QuantizableFamily]:
    """Find a model whose weights can be quantized. Raise as `open_model`, and `InvalidModel` for others."""
    folder, family = _open(model)
    if not isinstance(family, QuantizableFamily):
        raise InvalidModel(f"{folder.path}: models of {folder.pipeline_class} cannot be quantized")
    return folder, family


def open_compilable(model: str) -> tuple[ModelFolder, CompilableFamily]:
    """Find a model whose blocks can be compiled. Raise as `open_model`, and `InvalidModel` for others."""
    folder, family = _open(model)
    if not isinstance(family, CompilableFamily):
        raise InvalidModel(f"{folder.path}: models of {folder.pipeline_class} cannot be compiled, FLUX.1 can")
    if choose_quantization(folder, ("transformer",), None) is not Quantization.NONE:
        raise InvalidModel(f"{folder.path}: its weights are quantized; only blocks of others are compiled")
    return folder, family


def known_families() -> dict[str, EntryPoint]:
    """Return the families by pipeline class: those of this package, then those of other packages.

    A name of this package cannot be taken over by another.
    """
    others = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    return others | {entry.name: entry for entry in _BUILT_IN}


def _choose_quantization(
    folder: ModelFolder, family: PipelineFamily, wanted: Quantization | None
) -> Quantization:
    """Return how a model is to be loaded. Raise `InvalidModel` if it cannot be."""
    if isinstance(family, QuantizableFamily):
        return choose_quantization(folder, tuple(family.quantized_layers(folder)), wanted)
    if wanted in (None, Quantization.NONE):
        return Quantization.NONE
    raise InvalidModel(
        f"{folder.path}: models of {folder.pipeline_class} cannot be quantized; leave "
        f"quantization={wanted} out"
    )


def _check_offload(
    folder: ModelFolder, family: PipelineFamily, wanted: Offload, plan: ParallelPlan | None
) -> None:
    """Raise `InvalidModel` if weights of a model cannot stay on the host."""
    if wanted is not Offload.NONE and plan is not None:
        raise InvalidModel(f"offload={wanted}: weights of several GPUs stay on them; leave it out")
    allowed = tuple(family.offloads(folder)) if isinstance(family, OffloadableFamily) else (Offload.NONE,)
    if wanted not in allowed:
        raise InvalidModel(
            f"{folder.path}: models of {folder.pipeline_class} have no offload={wanted}; choose "
            f"{' or '.join(allowed)}"
        )


def _check_plan(
    folder: ModelFolder, family: PipelineFamily, quantization: Quantization, plan: ParallelPlan | None
) -> None:
    """Raise `InvalidParams` if the ranks of a plan cannot share a model's weights as it says."""
    if plan is None or not plan.is_cut:
        return
    if not isinstance(family, CuttableFamily):
        remedy = f"the weights of {folder.pipeline_class} are not cut over ranks, FLUX.1's are"
        raise InvalidParams("parallel", str(plan), f"{remedy}; give sequence={plan.num_ranks}")
    if quantization is not Quantization.NONE:
        remedy = f"weights in {quantization} are not cut over ranks; give sequence={plan.num_ranks}"
        raise InvalidParams("parallel", str(plan), f"{remedy}, or leave the quantization out")
    family.check_cut(folder, plan)


def _open(model: str) -> tuple[ModelFolder, PipelineFamily]:
    folder = open_model(model)
    return folder, load_family(_find_family(folder))


def _find_family(folder: ModelFolder) -> EntryPoint:
    """Return the family of a folder. Other packages are looked through only for what is not built in."""
    name = folder.pipeline_class
    built_in = {entry.name: entry for entry in _BUILT_IN}
    families = built_in if name in built_in else known_families()
    if name not in families:
        known = ", ".join(sorted(families))
        raise InvalidModel(
            f"{folder.path}: model_index.json names {name!r}, which is not served; known: {known}"
        )
    return families[name]


def load_family(entry: EntryPoint) -> PipelineFamily:
    """Import a family. Raise `InvalidModel` if the entry point names something else."""
    family: object = entry.load()
    if not isinstance(family, PipelineFamily):
        raise InvalidModel(f"entry point {entry.value!r}: not a PipelineFamily")
    return family
