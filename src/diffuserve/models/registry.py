"""Models by name: their specs and their pipelines. Importing this file loads no family and no torch.

Families of other packages are entry points of the group `diffuserve.families`: the name is the
`_class_name` of a `model_index.json`, the object a `PipelineFamily`.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from diffuserve.domain.errors import DiffuserveError, InvalidModel, InvalidParams
from diffuserve.domain.models.cost import CostFit
from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.parts import Parts
from diffuserve.domain.models.quantization import Quantization
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.workers.worker import ModelOffer
from diffuserve.models.family import Capabilities, PipelineFamily
from diffuserve.models.folders.folder import (
    ALONE,
    Companions,
    ModelFolder,
    find_local_model,
    open_configs,
    open_model,
)
from diffuserve.models.layers.quantized.quantized_layers import QuantizedLayers
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.memory_need import MemoryNeed, memory_needs, part_bytes
from diffuserve.models.weights.read_ahead import start_reading
from diffuserve.models.weights.stored_quantization import choose_quantization
from diffuserve.parallel.plan import ParallelPlan, check_passes, check_shared, encoder_sharing

if TYPE_CHECKING:
    import torch

    from diffuserve.models.compiled.halves import CompilableBlocks
    from diffuserve.models.pipelines.base import Pipeline

log = logging.getLogger(__name__)

ENTRY_POINT_GROUP = "diffuserve.families"
_FLUX = "diffuserve.models.families.flux.family:FLUX"
_FLUX2 = "diffuserve.models.families.flux2.family:FLUX2"
_QWEN_IMAGE = "diffuserve.models.families.qwen_image.family:QWEN_IMAGE"
_STABLE_DIFFUSION = "diffuserve.models.families.stable_diffusion.family:STABLE_DIFFUSION"
_WAN = "diffuserve.models.families.wan.family:WAN"
_Z_IMAGE = "diffuserve.models.families.z_image.family:Z_IMAGE"
_PIPELINES = {
    "Flux2KleinInpaintPipeline": _FLUX2,
    "Flux2KleinPipeline": _FLUX2,
    "Flux2Pipeline": _FLUX2,
    "FluxFillPipeline": _FLUX,
    "FluxImg2ImgPipeline": _FLUX,
    "FluxInpaintPipeline": _FLUX,
    "FluxKontextPipeline": _FLUX,
    "FluxPipeline": _FLUX,
    "LatentConsistencyModelPipeline": _STABLE_DIFFUSION,
    "QwenImageEditPipeline": _QWEN_IMAGE,
    "QwenImageEditPlusPipeline": _QWEN_IMAGE,
    "QwenImageImg2ImgPipeline": _QWEN_IMAGE,
    "QwenImageInpaintPipeline": _QWEN_IMAGE,
    "QwenImagePipeline": _QWEN_IMAGE,
    "StableDiffusionImg2ImgPipeline": _STABLE_DIFFUSION,
    "StableDiffusionInpaintPipeline": _STABLE_DIFFUSION,
    "StableDiffusionPipeline": _STABLE_DIFFUSION,
    "StableDiffusionXLImg2ImgPipeline": _STABLE_DIFFUSION,
    "StableDiffusionXLInpaintPipeline": _STABLE_DIFFUSION,
    "StableDiffusionXLPipeline": _STABLE_DIFFUSION,
    "WanImageToVideoPipeline": _WAN,
    "WanPipeline": _WAN,
    "ZImageImg2ImgPipeline": _Z_IMAGE,
    "ZImageInpaintPipeline": _Z_IMAGE,
    "ZImagePipeline": _Z_IMAGE,
}
_BUILT_IN = tuple(EntryPoint(name, value, ENTRY_POINT_GROUP) for name, value in _PIPELINES.items())
_ANY_PIPELINE = EntryPoint(
    "any", "diffuserve.models.families.any_pipeline.family:ANY_PIPELINE", ENTRY_POINT_GROUP
)
"""The family of the classes that have none of their own."""


def load_pipeline(model: str, plan: LoadPlan) -> "Pipeline":
    """Load a bundled model, a diffusers folder or a hub id as planned.

    Raise `ModelNotFound` or `InvalidModel` before any weight is read.
    """
    folder, family = _open(model, plan.companions)
    family.check_files(folder)
    able = family.capabilities(folder)
    plan = replace(plan, quantization=_choose_quantization(folder, able, plan.quantization))
    parallel = None if plan.ranks is None else plan.ranks.plan
    _check_parallel(folder, family, plan.kept_in, parallel)
    if plan.kept_in is Quantization.INT4:
        log.warning(
            "%s is loaded in 4 bits: that saves memory alone; steps take longer, and images differ visibly "
            "from those of the weights as they were published",
            folder.name,
        )
    load = partial(family.load, folder)
    if plan.offload is Offload.NONE:
        return load(plan)
    _check_offload(folder, able, plan.offload, parallel)
    from diffuserve.models.pipelines.offloaded import load_offloaded

    return load_offloaded(load, plan)


def num_weight_bytes(model: str, parts: Parts) -> int:
    """Return the size of the files whose weights are loaded for `parts`. Raise as `load_pipeline`."""
    return sum(file.stat().st_size for file in weight_files(model, parts))


def weight_files(model: str, parts: Parts) -> list[Path]:
    """Return the files whose weights are loaded for `parts`. Raise as `load_pipeline`."""
    folder, family = _open(model)
    return folder.weight_files(family.weight_folders(folder, parts))


def num_companion_bytes(model: str, companions: Companions) -> int:
    """Return the size of the weights that are loaded beside a model. Raise as `read_offer`."""
    folder, family = _found(open_configs(model), companions)
    return _companion_bytes(folder, family.capabilities(folder))


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
            return []  # loading the model reports why

    return start_reading(find)


def read_spec(model: str) -> ModelSpec:
    """Return the abilities of a model, from its folder's configs alone. Raise as `load_pipeline`."""
    return read_offer(model)[0]


def read_offer(model: str, companions: Companions = ALONE) -> tuple[ModelSpec, CostFit]:
    """Return a model's spec and its family's default cost fit, by its configs. Raise as `load_pipeline`."""
    folder, family = _found(open_configs(model), companions)
    spec = family.read_spec(folder)
    return spec, family.default_fit(folder, spec)


@dataclass(frozen=True)
class CheckedModel:
    """A model whose files are there and whole; nothing of it is loaded."""

    spec: ModelSpec
    folder: ModelFolder
    family: PipelineFamily
    capabilities: Capabilities

    def num_weight_bytes(self, parts: Parts) -> int:
        """Return the size of the files whose weights are loaded for `parts`, and of what is beside them."""
        own = self.folder.num_weight_bytes(self.family.weight_folders(self.folder, parts))
        return own + _companion_bytes(self.folder, self.capabilities)

    def memory_needs(self, parts: Parts, item_bytes: int, stored: Quantization) -> list[MemoryNeed]:
        """Return the memory of the device that each way to keep the weights takes, the fastest way first.

        Numbers that are not quantized take `item_bytes`; files that are `stored` quantized are kept so.
        """
        layers = self.capabilities.quantized_layers
        kinds = [stored] if stored is not Quantization.NONE or not layers else list(Quantization)
        names = self.family.weight_folders(self.folder, parts)
        found = {
            kind: [
                part_bytes(name, self.folder.weights(name), item_bytes, layers.get(name), kind)
                for name in names
            ]
            for kind in kinds
        }
        return memory_needs(found, self.capabilities.offloads)

    def min_bytes(self, params: GenerationParams) -> int:
        """Return what a request, whose defaults are filled in, takes at least: a step, or decoding a clip."""
        step = self.family.min_step_bytes(self.folder, self.spec.workload(params))
        decode = self.capabilities.min_decode_bytes
        return step if decode is None or (params.num_frames or 1) == 1 else max(step, decode(params))


def check_model(
    model: str,
    quantization: Quantization | None = None,
    offload: Offload = Offload.NONE,
    plan: ParallelPlan | None = None,
    companions: Companions = ALONE,
) -> CheckedModel:
    """Check a model as `load_pipeline` does, without torch, and return its spec. Raise as it does.

    `plan` is that of the ranks that will load it.
    """
    folder, family = _open(model, companions)
    family.check_files(folder)
    able = family.capabilities(folder)
    chosen = _choose_quantization(folder, able, quantization)
    _check_offload(folder, able, offload, plan)
    _check_parallel(folder, family, chosen, plan)
    return CheckedModel(family.read_spec(folder), folder, family, able)


def read_local_offer(model: str, companions: Companions = ALONE) -> ModelOffer | None:
    """Return what a worker will offer; `None` for a model of the hub that is not on this machine."""
    if find_local_model(model) is None:
        return None
    spec, fit = read_offer(model, companions)
    return ModelOffer(spec=spec, fit=fit)


def find_quantization(model: str, wanted: Quantization | None) -> Quantization:
    """Return how a model is loaded where `wanted` is asked for. Raise as `load_pipeline`."""
    folder, family = _open(model)
    return _choose_quantization(folder, family.capabilities(folder), wanted)


def find_capabilities(model: str) -> Capabilities:
    """Return what can be done with a model, by its configs. Raise as `read_offer`."""
    folder = open_configs(model)
    return load_family(_find_family(folder)).capabilities(folder)


def open_quantizable(model: str) -> tuple[ModelFolder, PipelineFamily, Mapping[str, QuantizedLayers]]:
    """Find a model whose weights can be quantized, and which layers of each component.

    Raise as `open_model`, and `InvalidModel` for others.
    """
    folder, family = _open(model)
    able = family.capabilities(folder)
    layers = able.quantized_layers
    if not layers:
        raise InvalidModel(f"{folder.path}: models of {folder.pipeline_class} cannot be quantized")
    if able.quantizes_at_load:
        raise InvalidModel(
            f"{folder.path}: models of {folder.pipeline_class} are quantized when they are loaded, not in "
            "their files; give --quantization where the model is served"
        )
    return folder, family, layers


def open_compilable(model: str, device: "torch.device", dtype: "torch.dtype | None") -> "CompilableBlocks":
    """Return the blocks of a model for the compiler. Raise as `open_model`, and `InvalidModel` for others."""
    folder, family = _open(model)
    compilable = family.capabilities(folder).compilable
    if compilable is None:
        raise InvalidModel(f"{folder.path}: models of {folder.pipeline_class} cannot be compiled, FLUX.1 can")
    if choose_quantization(folder, ("transformer",), None) is not Quantization.NONE:
        raise InvalidModel(f"{folder.path}: its weights are quantized; only blocks of others are compiled")
    return compilable(device, dtype)


def known_families() -> dict[str, EntryPoint]:
    """Return the families by pipeline class: those of this package, then those of other packages.

    A name of this package cannot be taken over by another.
    """
    others = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    return others | {entry.name: entry for entry in _BUILT_IN}


def _choose_quantization(
    folder: ModelFolder, able: Capabilities, wanted: Quantization | None
) -> Quantization:
    """Return how a model is to be loaded. Raise `InvalidModel` if it cannot be."""
    if able.quantized_layers:
        return choose_quantization(folder, tuple(able.quantized_layers), wanted)
    if wanted in (None, Quantization.NONE):
        return Quantization.NONE
    raise InvalidModel(
        f"{folder.path}: models of {folder.pipeline_class} cannot be quantized; leave "
        f"quantization={wanted} out"
    )


def _check_offload(
    folder: ModelFolder, able: Capabilities, wanted: Offload, plan: ParallelPlan | None
) -> None:
    """Raise `InvalidModel` if weights of a model cannot stay on the host."""
    if wanted is not Offload.NONE and plan is not None:
        raise InvalidModel(f"offload={wanted}: weights of several GPUs stay on them; leave it out")
    if wanted not in able.offloads:
        raise InvalidModel(
            f"{folder.path}: models of {folder.pipeline_class} have no offload={wanted}; choose "
            f"{' or '.join(able.offloads)}"
        )


def _check_parallel(
    folder: ModelFolder, family: PipelineFamily, quantization: Quantization, plan: ParallelPlan | None
) -> None:
    """Raise `InvalidParams` if the ranks of a plan cannot share a model's passes or weights as it says."""
    if plan is None:
        return
    able, kind = family.capabilities(folder), folder.pipeline_class
    if not able.spans_devices:
        remedy = f"{kind} runs on one device; leave the number of GPUs out, or start replicas"
        raise InvalidParams("parallel", str(plan), remedy)
    passes = family.read_spec(folder).guidance_passes if able.shares_passes else 1
    check_passes(plan, passes, kind)
    if plan.is_sharded:
        _check_sharded(kind, able, quantization, plan)


def _check_sharded(kind: str, able: Capabilities, quantization: Quantization, plan: ParallelPlan) -> None:
    """Raise `InvalidParams` if ranks cannot share the weights of a model of a `kind`."""
    if not able.shared:
        remedy = f"the weights of {kind} are not cut over ranks"
        raise InvalidParams("parallel", str(plan), f"{remedy}; give sequence={plan.num_ranks}")
    if quantization is not Quantization.NONE:
        remedy = f"weights in {quantization} are not cut over ranks; give sequence={plan.num_ranks}"
        raise InvalidParams("parallel", str(plan), f"{remedy}, or leave the quantization out")
    for name, count in able.shared.items():
        check_shared(plan, name, count)
    encoder_sharing(plan, able.encoder_shared)


def _open(model: str, companions: Companions = ALONE) -> tuple[ModelFolder, PipelineFamily]:
    return _found(open_model(model), companions)


def _found(folder: ModelFolder, companions: Companions) -> tuple[ModelFolder, PipelineFamily]:
    """Return a folder with its companions, and its family. Raise `InvalidModel` if it takes none such."""
    family = load_family(_find_family(folder))
    if companions == ALONE:
        return folder, family
    able = family.capabilities(folder)
    if companions.controlnets and not able.takes_controlnets:
        raise InvalidModel(
            f"{folder.path}: models of {folder.pipeline_class} have no ControlNets loaded beside them; leave "
            f"controlnets={', '.join(each.name for each in companions.controlnets)} out"
        )
    if companions.image_prompter is not None and able.image_prompter_files is None:
        raise InvalidModel(
            f"{folder.path}: models of {folder.pipeline_class} read no image prompts; leave "
            f"image_prompter={companions.image_prompter} out"
        )
    return replace(folder, companions=companions), family


def _companion_bytes(folder: ModelFolder, able: Capabilities) -> int:
    """Return the size of the weights that are loaded beside a folder's. Raise `InvalidModel`."""
    files = [file for controlnet in folder.controlnets for file in controlnet.weights()]
    prompter = folder.companions.image_prompter
    if prompter is not None and able.image_prompter_files is not None:
        files += able.image_prompter_files(prompter)
    return sum(file.stat().st_size for file in files)


def _find_family(folder: ModelFolder) -> EntryPoint:
    """Return the family of a folder: one for its class, else that of all of diffusers' pipelines.

    Other packages are looked through only for what is not built in.
    """
    name = folder.pipeline_class
    built_in = {entry.name: entry for entry in _BUILT_IN}
    families = built_in if name in built_in else known_families()
    return families.get(name, _ANY_PIPELINE)


def load_family(entry: EntryPoint) -> PipelineFamily:
    """Import a family. Raise `InvalidModel` if the entry point names something else."""
    family: object = entry.load()
    if not isinstance(family, PipelineFamily):
        raise InvalidModel(f"entry point {entry.value!r}: not a PipelineFamily")
    return family
