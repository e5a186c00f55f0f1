"""The price of a job: its predicted device-seconds, and the tokens that it adds to a step."""

import math
from dataclasses import dataclass

from diffuserve.domain.models.cost import CostFit, Workload
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams

# For models that were stored without a fit. Only the ratios between jobs have to be right.
NEUTRAL_FIT = CostFit((1e-3, 1e-5), (1e-3, 1e-5, 1e-9, 1e-4), (1e-3, 1e-8))

MAX_TIMES_DEFAULT = 100.0
"""Most that a measured fit may differ from the family's default; devices differ by less."""
MAX_TIMES_NEUTRAL = 10_000.0
"""Most that a family's default may differ from `NEUTRAL_FIT`, which knows nothing of the model."""


def bounded(fit: CostFit, prior: CostFit, spec: ModelSpec, most: float = MAX_TIMES_DEFAULT) -> CostFit:
    """Return the fit, scaled if it prices the model's default request over `most` times off the prior.

    Workers report fits, and every tenant is charged by them.
    """
    workload = _default_workload(spec)
    known = prior if prior.estimate(workload).seconds else NEUTRAL_FIT
    expected, price = known.estimate(workload).seconds, fit.estimate(workload).seconds
    if expected / most <= price <= expected * most:
        return fit
    if price <= 0 or not math.isfinite(price):  # cannot be scaled
        return known.scaled(most if price else 1 / most)
    return fit.scaled(min(max(price, expected / most), expected * most) / price)


def _default_workload(spec: ModelSpec) -> Workload:
    clip = GenerationParams(prompt="a clip", num_frames=spec.num_frames)
    num_pixels = spec.latent_frames(clip) * spec.width * spec.height
    if spec.is_audio:
        num_pixels = math.ceil(spec.seconds * spec.sample_rate)
    num_text = spec.max_sequence_length
    return Workload(
        num_sequences=1,
        sequence_tokens=-(-num_pixels // spec.pixels_per_token) + num_text,
        text_tokens=num_text,
        num_pixels=num_pixels,
        num_inference_steps=spec.num_inference_steps,
    )


@dataclass(frozen=True)
class Price:
    """Predicted device-seconds of a request, the part of them for decoding, and its tokens and bytes.

    `step_tokens` are the packed tokens of a step, and `latent_bytes` the bytes of the finished latents.
    """

    cost_seconds: float
    decode_seconds: float
    step_tokens: int
    latent_bytes: int


def predict(spec: ModelSpec, fit: CostFit, params: GenerationParams) -> Price:
    """Return the price of a request whose defaults are filled in."""
    workload = spec.workload(params)
    estimate = fit.estimate(workload)
    return Price(
        cost_seconds=estimate.seconds,
        decode_seconds=estimate.decode_seconds,
        step_tokens=workload.step_tokens,
        latent_bytes=spec.latent_bytes(params),
    )
