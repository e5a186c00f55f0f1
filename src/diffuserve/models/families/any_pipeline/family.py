"""The family of every pipeline class of diffusers that has no family of its own here.

Importing this file loads no torch and no diffusers.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.extras import Extra
from diffuserve.domain.models.cost import CostFit, Workload
from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.parts import ALL_PARTS, Parts
from diffuserve.domain.models.quantization import Quantization
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.adapter_use import MAX_ADAPTERS
from diffuserve.domain.text.nearest import did_you_mean
from diffuserve.domain.text.shortened import shortened
from diffuserve.models.families.any_pipeline.proven import OFFLOAD, SHARE_PASSES, may_resume
from diffuserve.models.families.any_pipeline.reading.abilities import describe
from diffuserve.models.families.any_pipeline.reading.components import (
    Kind,
    PipelineComponent,
    check_component,
    read_components,
)
from diffuserve.models.families.any_pipeline.reading.known_latents import has_previews
from diffuserve.models.families.any_pipeline.reading.operations import count_operations
from diffuserve.models.families.any_pipeline.reading.quantized_layers import quantized_layers
from diffuserve.models.families.any_pipeline.reading.signature import (
    Signature,
    pipeline_names,
    read_signature,
)
from diffuserve.models.families.any_pipeline.reading.sources import (
    class_sources,
    installed_version,
    is_installed,
)
from diffuserve.models.families.any_pipeline.reading.tasks import why_not_served
from diffuserve.models.family import Capabilities, PipelineFamily
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.folders.settings_file import build_spec
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.stored_quantization import stored_quantization

if TYPE_CHECKING:
    from diffuserve.models.pipelines.base import Pipeline

FIXED: Final = frozenset(
    {
        "family",
        "run_by",
        "shares_passes",
        "resumes",
        "has_previews",
        "has_layers",
        "sampler",
        "samplers",
        "max_adapters",
    }
)
"""Fields of the spec that a folder's settings file does not correct: they follow from this program."""
_PLAIN_BLOCKS = ("SequentialPipelineBlocks",)  # for which diffusers takes the class's own
_FIT = CostFit((2e-3, 2e-5), (2e-3, 3.2e-5, 1.75e-9, 1e-4), (5e-3, 5e-8))  # without weights at hand


class AnyPipelineFamily:
    """Pipelines of diffusers, each run by its class's own call."""

    def read_spec(self, folder: ModelFolder) -> ModelSpec:
        signature = served_signature(folder)
        components = read_components(folder, signature)
        defaults = {**describe(folder, signature), **_run_by(folder, signature, components)}
        return build_spec(folder, defaults, fixed=FIXED)

    def capabilities(self, folder: ModelFolder) -> Capabilities:
        may_offload = folder.pipeline_class in OFFLOAD
        return Capabilities(
            quantized_layers=quantized_layers(_components(folder)),
            quantizes_at_load=True,
            offloads=tuple(Offload) if may_offload else (Offload.NONE,),
            spans_devices=False,
        )

    def check_files(self, folder: ModelFolder) -> None:
        for component in _components(folder):
            check_component(folder, component)

        _check_plain(folder)

    def weight_folders(self, folder: ModelFolder, parts: Parts) -> Sequence[str]:
        return tuple(component.name for component in _components(folder) if component.kind is Kind.MODEL)

    def min_step_bytes(self, folder: ModelFolder, workload: Workload) -> int:
        return 0  # nothing is known of a class's activations before they are measured

    def default_fit(self, folder: ModelFolder, spec: ModelSpec) -> CostFit:
        operations = count_operations(folder)
        return operations.fit(operations.usual_rate) if operations.num_weights else _FIT

    def load(self, folder: ModelFolder, plan: LoadPlan) -> "Pipeline":
        from diffuserve.models.families.any_pipeline.pipeline import load_any_pipeline

        check_plan(folder, plan)
        return load_any_pipeline(folder, self.read_spec(folder), plan)


ANY_PIPELINE: PipelineFamily = AnyPipelineFamily()


def served_signature(folder: ModelFolder) -> Signature:
    """Return the signature of a folder's class. Raise `InvalidModel` for one that is not served."""
    name, origin = folder.pipeline_class, f"{folder.path}: {folder.index_file} names"
    if not is_installed():
        raise InvalidModel(
            f"{origin} {shortened(name)}, which is run by diffusers, and that is not installed; "
            f"{Extra.DIFFUSERS.remedy}"
        )
    signature = read_signature(name)
    if signature is None:
        raise InvalidModel(
            f"{origin} {shortened(name)}, which diffusers {installed_version()} does not have"
            f"{did_you_mean(name, pipeline_names())}{_explain_unknown(name)}"
        )
    if class_sources()[name].is_deprecated:
        raise InvalidModel(f"{origin} {name!r}, which diffusers no longer maintains; it is not served")
    if reason := why_not_served(signature):
        raise InvalidModel(f"{origin} {name!r}, which is not served: {reason}")
    _check_blocks(folder, signature)
    return signature


def _check_blocks(folder: ModelFolder, signature: Signature) -> None:
    """Raise `InvalidModel` for other blocks than those of the class: what they take is not known."""
    named = folder.index.get("_blocks_class_name")
    if signature.is_modular and named not in (None, signature.blocks, *_PLAIN_BLOCKS):
        raise InvalidModel(
            f"{folder.path}/{folder.index_file}: _blocks_class_name={shortened(named)}: {signature.name} is "
            f"run with its own blocks alone, {signature.blocks}"
        )


def check_plan(folder: ModelFolder, plan: LoadPlan) -> None:
    """Raise `InvalidModel` for a way of loading that no pipeline of diffusers can be loaded in."""
    whose = f"{folder.path}: {folder.pipeline_class} is run by diffusers, which"
    if plan.parts != ALL_PARTS:
        raise InvalidModel(f"{whose} loads all parts of a model; leave the choice of parts out")


def _check_plain(folder: ModelFolder) -> None:
    """Raise `InvalidModel` for weights quantized in their files, which no module of diffusers reads."""
    found = stored_quantization(folder, tuple(quantized_layers(_components(folder))))
    if found is not Quantization.NONE:
        raise InvalidModel(
            f"{folder.path}: its weights are quantized to {found}, which diffusers does not read; "
            f"take the model as it was published, and give --quantization {found}"
        )


def _explain_unknown(name: str) -> str:
    return "; code of a folder's own is never run" if "[" in name or "." in name or "/" in name else ""


def _components(folder: ModelFolder) -> tuple[PipelineComponent, ...]:
    return read_components(folder, served_signature(folder))


def _run_by(
    folder: ModelFolder, signature: Signature, components: Sequence[PipelineComponent]
) -> dict[str, object]:
    schedulers = [each.class_name for each in components if each.kind is Kind.SCHEDULER]
    return {
        "run_by": "diffusers",
        "shares_passes": signature.name in SHARE_PASSES,
        "resumes": may_resume(signature.name, schedulers),
        "has_previews": has_previews(folder),
        "max_adapters": MAX_ADAPTERS if {"transformer", "unet"} & {each.name for each in components} else 0,
    }
