"""The job that a request of AUTOMATIC1111's API asks for. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from diffuserve.api.a1111.request_bodies import ControlUnit, DrawBody
from diffuserve.api.a1111.samplers import (
    SAMPLERS,
    SCHEDULERS,
    TRAILING,
    is_meant,
    known_names,
    sampler_of,
    split_name,
)
from diffuserve.api.submit.request_bodies import AdapterBody, ControlBody, GenerationInput, NewJobBody
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.jobs.job import MAX_PREVIEWS
from diffuserve.domain.models.limits import takes
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import FIELDS
from diffuserve.domain.requests.prompt_syntax import WEIGHTS, without_networks
from diffuserve.domain.requests.samplers import SPACED_SAMPLERS

NAMES: Final = {
    "num_inference_steps": "steps",
    "guidance_scale": "cfg_scale",
    "strength": "denoising_strength",
    "image": "init_images",
    "num_images": "batch_size",
    "sampler": "sampler_name",
    "adapters": "prompt",
    "controls": "alwayson_scripts.controlnet",
    "control_image": "alwayson_scripts.controlnet",
    "control_scale": "alwayson_scripts.controlnet",
}
"""Fields of a request that have another name here."""
OWNER: Final = "a1111"
"""Entry of a job's metadata: whose key has sent it through this door."""

_OF_MODELS = ("negative_prompt", "guidance_scale", "strength", "eta")
_ASK_NOTHING: Final[Mapping[str, tuple[Any, ...]]] = {
    "enable_hr": (False,),
    "restore_faces": (False,),
    "tiling": (False,),
    "styles": ([],),
    "subseed_strength": (0,),
    "mask_blur": (0,),
    "inpainting_fill": (1,),
    "inpaint_full_res": (False, 0),
    "resize_mode": (0,),
    "refiner_checkpoint": ("", "None"),
    "script_name": ("", "None"),
    "s_churn": (0,),
}
"""What else may be asked for, and is not done: fields, and their values that ask for nothing."""


def field_name(name: str) -> str:
    """Return the name that a field of a request has in these bodies."""
    first, dot, _ = name.partition(".")
    return NAMES.get(first, name if not dot else first)


@dataclass(frozen=True)
class Drawing:
    """A job, and what its request asked for besides, in vain."""

    job: NewJobBody
    ignored: tuple[str, ...]


@dataclass
class _Said:
    """What a request says, by the names of a job's fields, while it is read."""

    body: DrawBody
    spec: ModelSpec
    values: dict[str, Any] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)


def drawing_of(body: DrawBody, spec: ModelSpec, owner: str) -> Drawing:
    """Return the job for a model. Raise `InvalidParams` for what this door refuses."""
    said = _Said(body, spec)
    said.ignored += [name for name, neutral in _ASK_NOTHING.items() if _asks(body, name, neutral)]
    others = [name for name in body.override_settings or {} if name != "sd_model_checkpoint"]
    said.ignored += [f"override_settings.{name}" for name in others]
    _read_prompt(said)
    _read_numbers(said)
    _read_sampler(said)
    _read_images(said)
    _read_scripts(said)
    job = NewJobBody.model_construct(
        model=spec.name,
        input=GenerationInput.model_construct(**said.values),
        metadata={OWNER: owner},
        output_format="png",
        num_previews=MAX_PREVIEWS if spec.has_previews else 0,
    )
    return Drawing(job, tuple(said.ignored))


def _asks(body: DrawBody, name: str, neutral: tuple[Any, ...]) -> bool:
    value = (body.model_extra or {}).get(name)
    return value is not None and value not in neutral


def _read_prompt(said: _Said) -> None:
    prompt, adapters, unknown = without_networks(said.body.prompt or "")
    said.values["prompt"] = prompt
    if adapters:
        said.values["adapters"] = [AdapterBody.model_construct(**adapter) for adapter in adapters]
    if said.spec.has_prompt_weights:
        said.values["prompt_syntax"] = WEIGHTS
    said.ignored += unknown


def _read_numbers(said: _Said) -> None:
    """Read what has one value; what the model knows nothing of is left out, as clients always send it."""
    body, values = said.body, said.values
    for name in ("width", "height", "negative_prompt", "num_inference_steps", "guidance_scale"):
        values[name] = getattr(body, NAMES.get(name, name))
    if body.init_images:
        values["strength"] = body.denoising_strength
    values["num_images"] = (1 if body.batch_size is None else body.batch_size) * (
        1 if body.n_iter is None else body.n_iter
    )
    values["seed"] = None if body.seed is None or body.seed < 0 else body.seed
    for name in _OF_MODELS:
        declared = FIELDS[name]
        if declared.asks_for_something(values.get(name)) and not takes(said.spec, declared):
            said.ignored.append(field_name(name))
            values[name] = None


def _read_sampler(said: _Said) -> None:
    body, available = said.body, said.spec.samplers
    asked = body.sampler_name or body.sampler_index
    if not asked:
        return
    name, schedule = split_name(asked, body.scheduler)
    if name is None:
        shown = ", ".join(known_names(available) or SAMPLERS)
        raise InvalidParams("sampler", asked, f"is no sampler of this server, which has: {shown}")
    sampler = sampler_of(name, schedule, available)
    if sampler is None:
        said.ignored.append("sampler_name")
        return
    said.values["sampler"] = sampler
    if schedule == TRAILING and sampler in SPACED_SAMPLERS:
        said.values["timestep_spacing"] = "trailing"
    elif schedule not in SCHEDULERS or schedule == TRAILING or not is_meant(schedule, sampler):
        said.ignored.append("scheduler")
    if sampler == "ddim":
        said.values["eta"] = body.eta


def _read_images(said: _Said) -> None:
    body = said.body
    images = [as_url(image) for image in body.init_images or ()]
    said.values["image"] = images[0] if len(images) == 1 else images or None
    if body.mask is not None and body.inpainting_mask_invert:
        remedy = "is not done here; send the mask inverted: white is what is drawn"
        raise InvalidParams("inpainting_mask_invert", body.inpainting_mask_invert, remedy)
    said.values["mask"] = None if body.mask is None else as_url(body.mask)


def as_url(image: str) -> str:
    """Return the URL of an image that is sent in base64, or of one that has a URL already."""
    if image[:5].lower() == "data:" or image[:8].lower() == "https://":
        return image
    return f"data:image/png;base64,{''.join(image.split())}"


def _read_scripts(said: _Said) -> None:
    for name, script in (said.body.alwayson_scripts or {}).items():
        units = script.get("args") if isinstance(script, dict) else None
        if name.lower() != "controlnet":
            said.ignored += [f"alwayson_scripts.{name}"] if units and units[:1] != [False] else []
            continue
        for unit in units or ():
            _read_control(said, unit)


def _read_control(said: _Said, values: object) -> None:
    try:
        unit = ControlUnit.model_validate(values)
    except ValidationError as error:
        problem = error.errors()[0]
        raise InvalidParams("controls", str(problem["loc"]), str(problem["msg"])) from error
    if not unit.enabled or unit.picture is None:
        return
    image, name = as_url(unit.picture), (unit.model or "None").partition(" [")[0]
    if unit.module not in (None, "none", "None"):
        said.ignored.append(f"alwayson_scripts.controlnet.module={unit.module}")
    if name in said.spec.controlnets:
        use = ControlBody.model_construct(
            name=name,
            image=image,
            weight=1.0 if unit.weight is None else unit.weight,
            start=unit.guidance_start or 0.0,
            end=1.0 if unit.guidance_end is None else unit.guidance_end,
        )
        said.values.setdefault("controls", []).append(use)
    elif said.spec.has_control_image and "control_image" not in said.values:
        said.values |= {"control_image": image, "control_scale": unit.weight}
    elif said.spec.controlnets:
        known = ", ".join(said.spec.controlnets)
        raise InvalidParams("controls", name, f"is no ControlNet of {said.spec.name}, which has: {known}")
    else:
        said.ignored.append("alwayson_scripts.controlnet")
