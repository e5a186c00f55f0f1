"""The price of a job: its predicted device-seconds, and the tokens that it adds to a step."""

from diffuserve.domain.cost import CostFit
from diffuserve.domain.model_spec import ModelSpec
from diffuserve.domain.params import GenerationParams

# For models that were stored without a fit. Ratios between jobs are what it has to get right.
NEUTRAL_FIT = CostFit((1e-3, 1e-5), (1e-3, 1e-5, 1e-9, 1e-4), (1e-3, 1e-8))


def predict(spec: ModelSpec, fit: CostFit, params: GenerationParams) -> tuple[float, int]:
    """Return device-seconds and packed tokens a step of a request whose defaults are filled in."""
    workload = spec.workload(params)
    return fit.estimate(workload).seconds, workload.step_tokens
