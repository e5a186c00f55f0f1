"""Served models, as the API writes them: OpenAI's fields, then the project's own."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from diffuserve.domain.models.tiers import TierPolicy
from diffuserve.domain.requests.request_fields import FieldKind, Topic
from diffuserve.domain.resource_base import Resource
from diffuserve.domain.resources.safety import FilterResource
from diffuserve.domain.workers.readiness import ModelStatus


@dataclass(frozen=True, kw_only=True)
class ModelSafetyResource(Resource):
    """Active filters; null or an empty list where there are none."""

    prompt: FilterResource | None
    image: tuple[FilterResource | None, ...] = field(
        metadata={"description": "Filters of the workers, null for a worker without one."}
    )


@dataclass(frozen=True, kw_only=True)
class FieldResource(Resource):
    """Field of a job's `input` that means something to a model."""

    name: str
    kind: FieldKind
    default: Any = field(metadata={"description": "What a request has that leaves it out; null if nothing."})
    min: int | float | None = field(
        metadata={"description": "The API's bounds; the model's own are its `limits`."}
    )
    max: int | float | None
    choices: tuple[str, ...] = field(metadata={"description": "Its values, where there are few."})
    topic: Topic | None = field(
        metadata={
            "description": "What a request must have for it to mean anything: an `image`, a `control` image, "
            "or a `clip`."
        }
    )
    samplers: tuple[str, ...] = field(
        metadata={"description": "Samplers that alone take it; empty if it does not depend on the sampler."}
    )
    label: str | None = field(metadata={"description": "Its name in forms; null if they leave it out."})
    hint: str | None
    step: float | None = field(metadata={"description": "Distance of its values in forms."})


@dataclass(frozen=True, kw_only=True)
class LearnedSizes(Resource):
    """Shortest and longest side, in pixels, of the images that a model was trained on."""

    min: int
    max: int


@dataclass(frozen=True, kw_only=True)
class TiersResource(Resource):
    """Values that requests of a model have on this server; an empty list allows all that it can do."""

    steps: tuple[int, ...] = field(metadata={"description": "Values of `num_inference_steps`."})
    sizes: tuple[str, ...] = field(metadata={"description": "As `WIDTHxHEIGHT`."})
    policy: TierPolicy = field(
        metadata={"description": "A request for another value gets the `nearest`, or is refused (`refuse`)."}
    )


@dataclass(frozen=True, kw_only=True)
class ModelResource(Resource):
    """Model with its defaults and limits."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    status: ModelStatus = field(
        metadata={
            "description": "`ready`: jobs run; `loading`: they run once a worker has loaded the model; "
            "`unavailable`: they wait for a worker."
        }
    )
    family: str
    run_by: str = field(
        default="diffuserve",
        metadata={
            "description": "Whose code draws: `diffuserve`, or a library such as `diffusers`, whose pipeline "
            "is run as it is."
        },
    )
    input_modalities: tuple[str, ...] = field(
        metadata={"description": "What a request may bring: `text`, its prompt, and `image`."}
    )
    output_modalities: tuple[str, ...] = field(
        metadata={
            "description": "What the model makes, by the kind of the job: `image`, `video`, `audio`; "
            "`audio` beside `video` if its clips have sound."
        }
    )
    defaults: Mapping[str, Any] = field(
        metadata={
            "description": "What a request has that leaves a field out: `strength` with an image, "
            "`mask_strength` with a mask too. Null where the model has no such choice."
        }
    )
    limits: Mapping[str, Any] = field(
        metadata={
            "description": "What a request may ask for. Sides are multiples of `size_multiple`, `samplers` "
            "the values of `sampler`; `image` takes `min_input_images` to `max_input_images`. The longest "
            "prompt, most steps and previews, and the highest guidance, fps and seed are those of the API. "
            "With `shares_passes` jobs are drawn together, else one after another; a model that `resumes` "
            "continues half-done jobs elsewhere, and others start them anew."
        }
    )
    fields: tuple[FieldResource, ...] = field(
        default=(), metadata={"description": "Fields of a job's `input` that mean something to the model."}
    )
    learned_sizes: LearnedSizes | None = field(
        metadata={
            "description": "Null where the model does not say. Images of other sizes have a warning in "
            "their result."
        }
    )
    qualities: Mapping[str, int] = field(
        default_factory=dict,
        metadata={"description": "Steps of each `quality` that OpenAI's clients may ask for."},
    )
    aliases: tuple[str, ...] = field(
        default=(), metadata={"description": "Other names by which requests may ask for the model."}
    )
    tiers: TiersResource | None = field(
        default=None,
        metadata={"description": "Null where requests may have all values within the `limits`."},
    )
    example_prompt: str | None = field(
        default=None,
        metadata={"description": "A prompt that the model draws well; null if it names none."},
    )
    example_prompts: tuple[str, ...] = field(
        default=(), metadata={"description": "That prompt, and others that the model draws well."}
    )
    quantizations: tuple[str, ...] = field(
        default=(),
        metadata={
            "description": "What its workers keep the weights in: `none`, `int8`, `fp8` or `int4`; empty "
            "until one is ready. A job that is `exact` is drawn by those with `none` alone."
        },
    )
    offloads: tuple[str, ...] = field(
        default=(),
        metadata={
            "description": "Which of its weights its workers keep on the host until they are used: `none`, "
            "`text`, `model` or `layers`; empty until one is ready. Images do not depend on it."
        },
    )
    num_workers: int = field(
        default=0, metadata={"description": "Workers that offer the model, in memory or to be loaded."}
    )
    num_resident: int = field(default=0, metadata={"description": "Those of them that have it in memory."})
    load_seconds: float | None = field(
        default=None,
        metadata={"description": "What loading it took a worker the last time; null until that is measured."},
    )
    adapters: tuple[str, ...] = field(
        default=(),
        metadata={"description": "Adapters that the caller's requests for the model may name."},
    )
    safety: ModelSafetyResource


@dataclass(frozen=True, kw_only=True)
class ModelList(Resource):
    """Models that workers have offered."""

    object: Literal["list"] = "list"
    data: tuple[ModelResource, ...]
