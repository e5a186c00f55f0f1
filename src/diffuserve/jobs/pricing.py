"""What a job is expected to cost, before any worker of its model has measured anything."""

from diffuserve.domain.cost import CostFit
from diffuserve.domain.model_spec import ModelSpec
from diffuserve.domain.params import GenerationParams

# FLUX.1-schnell in bf16 on a large GPU, from its operations: 24 Tflop a step of 1,280 tokens at about
# 400 Tflop/s. Only ratios between jobs matter until the first worker sends its own fit.
FAMILY_FITS = {"flux": CostFit((2e-3, 2e-5), (2e-3, 6e-5, 2e-9, 1e-4), (5e-3, 5e-8))}
_ANY = CostFit((1e-3, 1e-5), (1e-3, 1e-5, 1e-9, 1e-4), (1e-3, 1e-8))


def default_fit(spec: ModelSpec) -> CostFit:
    """The family's."""
    return FAMILY_FITS.get(spec.family, _ANY)


def predict(spec: ModelSpec, fit: CostFit, params: GenerationParams) -> tuple[float, int]:
    """device-seconds and packed tokens a step of a request whose defaults are filled in."""
    load = spec.workload(params)
    return fit.estimate(load).seconds, load.step_tokens
