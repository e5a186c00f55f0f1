"""Jobs of OpenAI's clients, fitted to the model that they name: size, steps and frames."""

from typing import Any

from diffuserve.api.openai.background import check_background
from diffuserve.api.openai.request_bodies import CommonImageFields
from diffuserve.api.submit.request_bodies import NewJobBody
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.models.qualities import quality_steps
from diffuserve.domain.models.sizes import well_drawn_size
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.models.tiers import TierPolicy
from diffuserve.jobs.reads.operations import OfferedModel

_FRAMES, _FRAME_MS = 9, 200  # OpenAI's own defaults


def fitted(job: NewJobBody, served: OfferedModel, sizes: TierPolicy) -> NewJobBody:
    """Return the job with a size that the model draws well. Raise `InvalidParams` if others are refused."""
    return _with_input(job, _size(job, served, sizes))


def fitted_images(
    fields: CommonImageFields, job: NewJobBody, served: OfferedModel, sizes: TierPolicy
) -> NewJobBody:
    """Return the job of images, also with the steps of their quality, and the frames of an animation.

    Raise `InvalidParams`, and `ModelNotCapable` for a background that the model's images do not have.
    """
    check_background(fields.background, job.output_format or "png", served.spec)
    frames = _frames(fields, served.spec) if fields.is_clip else {}
    return _with_input(fitted(job, served, sizes), _steps(fields, job, served) | frames)


def _steps(fields: CommonImageFields, job: NewJobBody, served: OfferedModel) -> dict[str, Any]:
    if fields.known_quality is None or job.input.num_inference_steps is not None:  # which says more
        return {}
    return {"num_inference_steps": quality_steps(served.spec, served.tiers.steps)[fields.known_quality]}


def _frames(fields: CommonImageFields, spec: ModelSpec) -> dict[str, Any]:
    strides = round(((fields.frame_count or _FRAMES) - 1) / spec.temporal_stride)
    frames = 1 + max(strides, 1) * spec.temporal_stride
    return {
        "num_frames": min(frames, spec.longest_clip),
        "fps": max(1, round(1000 / (fields.frame_duration_ms or _FRAME_MS))),
    }


def _size(job: NewJobBody, served: OfferedModel, policy: TierPolicy) -> dict[str, int]:
    width, height = job.input.width, job.input.height
    if not (width and height) or served.tiers.sizes or not served.spec.has_size:
        return {}
    across, down = well_drawn_size(served.spec, width, height)
    if policy is TierPolicy.REFUSE and (across, down) != (width, height):
        remedy = f"is no size that {served.spec.name} draws well; the nearest size is {across}x{down}"
        raise InvalidParams("size", f"{width}x{height}", remedy)
    return {"width": across, "height": down}


def _with_input(job: NewJobBody, values: dict[str, Any]) -> NewJobBody:
    return job.model_copy(update={"input": job.input.model_copy(update=values)})
