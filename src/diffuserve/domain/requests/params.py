"""The parameters of a request. Names and meanings are diffusers'."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Final

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.requests.adapter_use import MAX_ADAPTERS, AdapterUse, adapter_uses
from diffuserve.domain.requests.control_use import MAX_CONTROLS, ControlUse, control_uses
from diffuserve.domain.requests.drawing_fields import CLIPS, FLAT_ALONE, DrawingFields
from diffuserve.domain.requests.input_image import ImageInput, InputImage, converted, each_image
from diffuserve.domain.requests.plain_values import plain, restored
from diffuserve.domain.requests.request_bounds import MAX_IMAGE_PROMPTS, MAX_INPUT_IMAGES, MAX_SEED
from diffuserve.domain.requests.request_fields import (
    Dialect,
    RequestField,
    Topic,
    request_field,
    request_fields,
)

_IMAGES: Final = frozenset({Dialect.FLAT, Dialect.OPENAI_IMAGES})
_EDITS: Final = frozenset({Dialect.FLAT, Dialect.OPENAI_EDITS})


@dataclass(frozen=True, kw_only=True)
class GenerationParams(DrawingFields):
    """A request for images, clips or sounds. `None` stands for the model's default.

    Image `i` of `num_images` is generated with seed `seed + i`. Without a seed the engine draws a random one
    and reports it. No negative prompt and an empty one are different things to some models. A clip has
    `num_frames` frames, or as many as come nearest to its `seconds`; 1 frame is an image. A sound has
    `seconds`.

    `image` is the image to start from, to fill in where `mask` is white, or to edit; models that take several
    as references take a sequence. `control_image` guides where things are, by the model's first ControlNet,
    and `controls` by those that they name. `image_prompts` say what is drawn, as the prompt does.
    `last_image` is where a clip ends.

    Raise `InvalidParams` (a `ValueError`), which names the field, the value and the remedy.
    """

    image: ImageInput | tuple[ImageInput, ...] | list[ImageInput] | None = request_field(
        help="Image to start from, to fill in or to edit, or the first frame of a clip, by its {names}; "
        "repeat it for models that take several.",
        description="Image to start from, to fill in, or to edit, or the first frame of a clip: the id of an "
        "uploaded file, a `data:` URL or an `https:` URL. Models that take several references take a list. "
        "Without a size the result has the image's.",
        max_length=MAX_INPUT_IMAGES,
        needs="max_input_images",
        topic=Topic.IMAGE,
        aliases=("init_image", "init_images", "input_image", "image_url", "image_urls"),
        dialects=FLAT_ALONE,
    )
    mask: ImageInput | None = request_field(
        help="Fill the image in where this one is white, and keep it where it is black.",
        description="Image of the same size as `image`, white where it is filled in; named as `image` is.",
        mode="L",
        needs="has_mask",
        refusal="fills nothing in; leave mask out",
        needed_by="needs_mask",
        demand="fills in where a mask is white; give mask",
        beside="image",
        lack="the image that it belongs to; give image",
        topic=Topic.IMAGE,
        aliases=("mask_image",),
        dialects=FLAT_ALONE,
    )
    strength: float | None = request_field(
        help="How far to go from the image, above 0 up to 1, which keeps nothing; by default the model's.",
        description="Part of the steps that `image` goes through, above 0; 1 keeps nothing of it.",
        gt=0,
        le=1,
        remedy="1 keeps nothing of the image",
        needs="takes_strength",
        refusal="takes images as references; leave strength out",
        beside="image",
        lack="an image to start from; give image, or leave it out",
        topic=Topic.IMAGE,
        aliases=("denoising_strength", "prompt_strength"),
        dialects=_EDITS,
        label="Strength",
    )
    control_image: ImageInput | None = request_field(
        help="Image that says where things are, such as edges, depth or a pose, by its {names}.",
        description="Image that says where things are: edges, depth or a pose, as the model has learned it. "
        "Named as `image` is, and stretched to the size of the result, which without a size is its own.",
        needs="has_control_image",
        refusal="takes no control image; leave control_image out",
        needed_by="needs_control_image",
        demand="needs an image that says where things are; give control_image",
        topic=Topic.CONTROL,
        aliases=("controlnet_image",),
        dialects=_IMAGES,
        label="Control image",
        hint="edges, depth or a pose, as the model has learned it",
    )
    control_scale: float | None = request_field(
        help="How closely to follow the control image, 0 to 2; by default the model's.",
        ge=0,
        le=2,
        needs="has_control_image",
        refusal="takes no control image; leave control_scale out",
        beside="control_image",
        lack="an image to follow; give control_image, or leave it out",
        topic=Topic.CONTROL,
        aliases=("controlnet_conditioning_scale",),
        dialects=_IMAGES,
        label="Control scale",
        hint="how closely to follow the control image",
        step=0.05,
    )
    controls: tuple[ControlUse, ...] | list[ControlUse] | None = request_field(
        help="ControlNet, and the image that it follows; repeat it for up to 3. What it adds counts WEIGHT "
        "times, and in the steps from START to END of 1.",
        description="ControlNets that say where things are, up to 3, each with its `name`, one of "
        "`limits.controlnets`, and its `image`, named as `image` is and stretched to the size of the result. "
        "A `weight` of 1 is the ControlNet as it was trained; it acts from `start` to `end`, parts of the "
        "steps. Those that know several kinds of control images take the number of one as `mode`.",
        max_length=MAX_CONTROLS,
        needs="controlnets",
        refusal="has no ControlNets; leave controls out",
        topic=Topic.CONTROL,
        option=("--control",),
        aliases=("controlnets", "controlnet"),
        dialects=_IMAGES,
    )
    image_prompts: ImageInput | tuple[ImageInput, ...] | list[ImageInput] | None = request_field(
        help="Image that says what is drawn, beside the prompt, by its {names}; repeat it for up to 4.",
        description="Images that say what is drawn, beside the prompt: one or a list of up to 4, named as "
        "`image` is. Their size says nothing.",
        max_length=MAX_IMAGE_PROMPTS,
        needs="max_image_prompts",
        refusal="reads no image prompts; leave image_prompts out, or start it with an image_prompter",
        topic=Topic.IMAGE_PROMPT,
        option=("--image-prompt",),
        aliases=("ip_adapter_image", "image_prompt"),
        dialects=_IMAGES,
    )
    image_prompt_scale: float | None = request_field(
        help="How much image prompts count, 0 to 2; by default 1.",
        ge=0,
        le=2,
        needs="max_image_prompts",
        refusal="reads no image prompts; leave image_prompt_scale out",
        beside="image_prompts",
        lack="an image to count; give image_prompts, or leave it out",
        topic=Topic.IMAGE_PROMPT,
        standard=1,
        label="Image prompt scale",
        aliases=("ip_adapter_scale", "prompt_embeds_scale"),
        dialects=_IMAGES,
    )
    adapters: tuple[AdapterUse, ...] | list[AdapterUse] | None = request_field(
        help="Adapter that changes how the model draws, and how much of it, by default 1; repeat it for up "
        "to 4.",
        description="Adapters (LoRA) that change how the model draws, up to 4, each with its `name` and how "
        "much of it: a `weight` of 1 is the adapter as it was trained.",
        max_length=MAX_ADAPTERS,
        needs="max_adapters",
        refusal="takes no adapters; leave adapters out",
        option=("--adapter",),
        aliases=("loras", "lora"),
        label="Adapters",
    )
    last_image: ImageInput | None = request_field(
        help="Last frame of a clip that begins with an image, by its {names}.",
        description="Last frame of a clip whose first one is `image`; named as that is.",
        needs="has_last_frame",
        refusal="takes no last frame; leave last_image out",
        needed_by="needs_last_frame",
        demand="draws clips between two frames; give last_image",
        beside="image",
        lack="the first frame of the clip; give image",
        topic=Topic.CLIP,
        aliases=("end_image",),
        dialects=CLIPS,
        label="Last frame",
    )

    def __post_init__(self) -> None:
        for name in ("image", "image_prompts"):
            if isinstance(value := getattr(self, name), list):
                object.__setattr__(self, name, tuple(value))
        object.__setattr__(self, "adapters", adapter_uses(self.adapters))
        object.__setattr__(self, "controls", control_uses(self.controls))
        for declared in FIELDS.values():
            declared.check(getattr(self, declared.name))
        if not self.prompt.strip():
            raise InvalidParams("prompt", self.prompt, "must not be empty; describe the image")
        if self.seed is not None and self.seed + self.num_images - 1 > MAX_SEED:
            raise InvalidParams(
                "seed", self.seed, f"seed + num_images - 1 must be below 2**63; num_images={self.num_images}"
            )
        if self.controls and self.control_image is not None:
            remedy = "says the same as controls; give one of them"
            raise InvalidParams("control_image", _name(self.control_image), remedy)
        for declared in FIELDS.values():
            self._check_beside(declared)

    @property
    def images(self) -> tuple[ImageInput, ...]:
        """The images of `image`, in order."""
        return each_image(self.image)

    @property
    def prompt_images(self) -> tuple[ImageInput, ...]:
        """The images of `image_prompts`, in order."""
        return each_image(self.image_prompts)

    @property
    def input_images(self) -> tuple[tuple[str, ImageInput], ...]:
        """Every image that the request brings, with the name of its field."""
        return tuple((name, image) for name in IMAGE_FIELDS for image in each_image(getattr(self, name)))

    @property
    def clip_values(self) -> Mapping[str, Any]:
        """Return what is said of a clip beside its length, by name; images by what names them."""
        said = {name: _name(getattr(self, name)) for name in _OF_CLIPS}
        return {name: value for name, value in said.items() if value is not None}

    @property
    def sampler_options(self) -> tuple[tuple[str, Any], ...]:
        """Options of the request's sampler that are given, by name."""
        said = ((name, getattr(self, name)) for name in _SAMPLER_OPTIONS)
        return tuple((name, value) for name, value in said if value is not None)

    def with_images(self, convert: Callable[[str, ImageInput], ImageInput]) -> "GenerationParams":
        """Return the parameters with `convert(field, image)` in place of each image."""
        given = {name: getattr(self, name) for name, _ in self.input_images}
        return replace(
            self, **{name: converted(value, partial(convert, name)) for name, value in given.items()}
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters that are set, ready for JSON; input images are named, not included."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: plain(value) for name, value in values.items() if value is not None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "GenerationParams":
        """Build parameters from the output of `to_dict`, ignoring fields of newer versions.

        Raise `InvalidParams` for bad values.
        """
        known = {field.name for field in fields(cls)}
        return cls(**{name: restored(value) for name, value in values.items() if name in known})

    def _check_beside(self, declared: RequestField) -> None:
        value = getattr(self, declared.name)
        if declared.beside and value is not None and not each_image(getattr(self, declared.beside)):
            raise InvalidParams(declared.name, _name(value), f"needs {declared.lack}")


JUDGED: Final = ("prompt", "lyrics")
"""Texts of a request that the prompt filter judges."""
FIELDS: Mapping[str, RequestField] = request_fields(GenerationParams)
"""The fields of a request, by name."""
IMAGE_FIELDS = {name: declared for name, declared in FIELDS.items() if declared.is_image}
"""Those of them whose values are images."""
_SAMPLER_OPTIONS = tuple(name for name, declared in FIELDS.items() if declared.samplers)
_OF_CLIPS = tuple(
    name
    for name, declared in FIELDS.items()
    if declared.topic is Topic.CLIP and name not in ("num_frames", "seconds")
)


def _name(image: object) -> object:
    return image.id if isinstance(image, InputImage) else image
