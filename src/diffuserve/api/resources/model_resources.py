"""Resources of models, built from their specs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any

from diffuserve.domain.jobs.job import MAX_PREVIEWS
from diffuserve.domain.models.limits import takes
from diffuserve.domain.models.qualities import quality_steps
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.models.tiers import NO_TIERS, Tiers
from diffuserve.domain.requests.params import FIELDS, IMAGE_FIELDS
from diffuserve.domain.requests.request_fields import RequestField, Topic
from diffuserve.domain.resources.model import (
    FieldResource,
    LearnedSizes,
    ModelResource,
    ModelSafetyResource,
    TiersResource,
)
from diffuserve.domain.workers.exactness import offloads, quantizations
from diffuserve.domain.workers.readiness import ModelStatus, workers_of
from diffuserve.domain.workers.worker import Worker

_DEFAULTS = (*(each.name for each in fields(ModelSpec) if each.name in FIELDS), "mask_strength")
_LIMITS = (
    "min_size",
    "max_size",
    "max_pixels",
    "size_multiple",
    "max_images",
    "max_frames",
    "temporal_stride",
    "max_seconds",
    "sample_rate",
    "has_lyrics",
    "longest_sequence_length",
    "has_guidance",
    "guided_above",
    "has_negative_prompt",
    "samplers",
    "min_input_images",
    "max_input_images",
    "max_adapters",
    "max_reference_pixels",
    "min_reference_side",
    "scales_references",
    "has_mask",
    "needs_mask",
    "masks_references",
    "has_strength",
    "has_prompt_weights",
    "has_first_frame",
    "has_last_frame",
    "needs_last_frame",
    "has_layers",
    "has_control_image",
    "needs_control_image",
    "max_image_prompts",
    "controlnets",
    "control_modes",
    "has_previews",
    "shares_passes",
    "resumes",
)
_BOUNDED = ("num_inference_steps", "guidance_scale", "fps", "seed")
_LIMITS_OF_ALL = {
    "max_prompt_characters": FIELDS["prompt"].max_length,
    **{f"max_{name}": FIELDS[name].le for name in _BOUNDED},
    "max_previews": MAX_PREVIEWS,
}


def model_resource(  # noqa: PLR0913 (what is known of a model)
    spec: ModelSpec,
    status: ModelStatus,
    safety: ModelSafetyResource,
    tiers: Tiers = NO_TIERS,
    workers: Collection[Worker] = (),
    load_seconds: float = 0.0,
    adapters: Sequence[str] = (),
) -> ModelResource:
    """Build a model's resource. `created` is 0: the time at which a model was made is not known."""
    offered_by, defaults = workers_of(spec.name, workers), _defaults(spec)
    return ModelResource(
        id=spec.name,
        created=0,
        owned_by="diffuserve",
        status=status,
        family=spec.family,
        input_modalities=("text", "image") if _takes_images(spec) else ("text",),
        output_modalities=_outputs(spec),
        defaults=defaults,
        run_by=spec.run_by or "diffuserve",
        limits=_limits(spec),
        fields=tuple(
            _field(spec, declared, defaults) for declared in FIELDS.values() if takes(spec, declared)
        ),
        learned_sizes=_learned_sizes(spec),
        qualities=quality_steps(spec, tiers.steps),
        tiers=TiersResource(**vars(tiers)) if tiers.steps or tiers.sizes else None,
        example_prompt=spec.example_prompt or None,
        example_prompts=spec.example_prompts or tuple(filter(None, [spec.example_prompt])),
        quantizations=quantizations(spec.name, workers),
        offloads=offloads(spec.name, workers),
        num_workers=len(offered_by),
        num_resident=sum(spec.name in worker.report.resident_models for worker in offered_by),
        load_seconds=load_seconds or None,
        adapters=tuple(adapters),
        safety=safety,
    )


def _takes_images(spec: ModelSpec) -> bool:
    return any(takes(spec, declared) for declared in IMAGE_FIELDS.values())


def _outputs(spec: ModelSpec) -> tuple[str, ...]:
    if spec.is_audio:
        return ("audio",)
    sound = ("audio",) if spec.has_sound else ()
    return ("image", "video", *sound) if spec.is_video else ("image",)


def _limits(spec: ModelSpec) -> dict[str, Any]:
    own = {name: getattr(spec, name) for name in _LIMITS} | {"samplers": list(spec.samplers)}
    own |= {"controlnets": list(spec.controlnets), "control_modes": list(spec.control_modes)}
    return own | _LIMITS_OF_ALL | ({} if spec.has_previews else {"max_previews": 0})


def _defaults(spec: ModelSpec) -> dict[str, Any]:
    """Return the default of each field; null for fields that the model does not use."""
    values = {name: getattr(spec, name) for name in _DEFAULTS}
    if not spec.has_strength:
        values["strength"] = None
    if not spec.has_control_image:
        values["control_scale"] = None
    if not spec.is_video:
        values["fps"] = None
    if spec.is_audio:
        values |= dict.fromkeys(("width", "height", "num_frames"))
    else:
        values["seconds"] = None
    if not (spec.takes_strength and spec.has_mask):
        values["mask_strength"] = None
    return values | {"sampler": spec.sampler or None}


def _field(spec: ModelSpec, declared: RequestField, defaults: Mapping[str, Any]) -> FieldResource:
    return FieldResource(
        name=declared.name,
        kind=declared.kind,
        default=defaults.get(declared.name, declared.standard),
        min=declared.ge if declared.gt is None else declared.gt,
        max=declared.le,
        choices=spec.samplers if declared.name == "sampler" else declared.choices,
        topic=_topic(spec, declared),
        samplers=declared.samplers,
        label=declared.label,
        hint=declared.hint,
        step=declared.step,
    )


def _topic(spec: ModelSpec, declared: RequestField) -> Topic | None:
    """Return what a request must have for a field; of sounds, which are all that a model makes, nothing."""
    if declared.needs == "takes_strength" and not spec.has_strength:
        return Topic.MASK
    return None if spec.is_audio else declared.topic


def _learned_sizes(spec: ModelSpec) -> LearnedSizes | None:
    return (
        LearnedSizes(min=spec.learned_min_size, max=spec.learned_max_size)
        if spec.states_learned_sizes
        else None
    )
