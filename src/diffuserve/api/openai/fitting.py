"""Requests of OpenAI's clients, fitted to the model that they name: size, steps and frames."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from diffuserve.api.openai.background import check_background
from diffuserve.api.openai.request_bodies import CommonImageFields
from diffuserve.api.openai.tolerant_body import TolerantBody
from diffuserve.api.submit.request_bodies import NewJobBody
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.models.qualities import quality_steps
from diffuserve.domain.models.sizes import well_drawn_size
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.models.tiers import TierPolicy
from diffuserve.jobs.reads.operations import OfferedModel

_FRAMES, _FRAME_MS = 9, 200  # OpenAI's own defaults

FieldsT = TypeVar("FieldsT", bound=TolerantBody)


@dataclass(frozen=True)
class Notes:
    """What a response says of its request: the fields that changed nothing, and what was done otherwise."""

    ignored: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, fields: TolerantBody) -> "Notes":
        """Return what can be said of a body whatever the model."""
        return cls(fields.ignored, fields.slips)


@dataclass(frozen=True)
class Fitted(Generic[FieldsT]):
    """A body of OpenAI's API, and the job that it asks for."""

    fields: FieldsT
    job: NewJobBody
    notes: Notes


def fitted(
    fields: FieldsT,
    job: NewJobBody,
    served: OfferedModel,
    sizes: TierPolicy,
    chosen: Callable[[FieldsT, NewJobBody, OfferedModel], dict[str, Any]] = lambda *_: {},
) -> Fitted[FieldsT]:
    """Return the job with a size that the model draws well, and with what is `chosen` for it besides.

    Raise `InvalidParams` for other sizes if they are refused.
    """
    notes = Notes.of(fields)
    size, told = _size(job, served, sizes)
    changed = _with_input(job, size | chosen(fields, job, served))
    return Fitted(fields, changed, Notes(notes.ignored, (*notes.warnings, *told)))


def fitted_images(
    fields: CommonImageFields, job: NewJobBody, served: OfferedModel, sizes: TierPolicy
) -> Fitted[CommonImageFields]:
    """Return the job of images, with steps for their quality. Raise `ModelNotCapable` and `InvalidParams`."""
    check_background(fields.background, job.output_format or "png", served.spec)
    return fitted(fields, job, served, sizes, _drawn)


def _drawn(fields: CommonImageFields, job: NewJobBody, served: OfferedModel) -> dict[str, Any]:
    steps: dict[str, Any] = {}
    if fields.known_quality and job.input.num_inference_steps is None:  # which says more
        steps = {"num_inference_steps": quality_steps(served.spec, served.tiers.steps)[fields.known_quality]}
    return steps | (_frames(fields, served.spec) if fields.is_clip else {})


def _frames(fields: CommonImageFields, spec: ModelSpec) -> dict[str, Any]:
    strides = round(((fields.frame_count or _FRAMES) - 1) / spec.temporal_stride)
    frames = 1 + max(strides, 1) * spec.temporal_stride
    return {
        "num_frames": min(frames, spec.longest_clip),
        "fps": max(1, round(1000 / (fields.frame_duration_ms or _FRAME_MS))),
    }


def _size(
    job: NewJobBody, served: OfferedModel, policy: TierPolicy
) -> tuple[dict[str, Any], tuple[str, ...]]:
    width, height = job.input.width, job.input.height
    if not (width and height) or served.tiers.sizes or not served.spec.has_size:
        return {}, ()
    across, down = well_drawn_size(served.spec, width, height)
    if (across, down) == (width, height):
        return {}, ()
    asked, nearest = f"{width}x{height}", f"{across}x{down}"
    if policy is TierPolicy.REFUSE:
        remedy = f"is no size that {served.spec.name} draws well; the nearest size is {nearest}"
        raise InvalidParams("size", asked, remedy)
    told = f"size {asked} was replaced by {nearest}, the nearest that {served.spec.name} draws well"
    return {"width": across, "height": down}, (told,)


def _with_input(job: NewJobBody, values: dict[str, Any]) -> NewJobBody:
    if not values:
        return job
    return job.model_copy(update={"input": job.input.model_copy(update=values)})
