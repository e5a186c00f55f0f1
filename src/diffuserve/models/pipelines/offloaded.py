"""Pipelines whose weights stay on the host until they are used."""

from collections.abc import Callable
from dataclasses import replace

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.quantization import Quantization
from diffuserve.models.offload.components import place
from diffuserve.models.offload.copier import copier_for
from diffuserve.models.pipelines.base import Pipeline
from diffuserve.models.weights.load_plan import LoadPlan


def load_offloaded(load: Callable[[LoadPlan], Pipeline], plan: LoadPlan) -> Pipeline:
    """Load a pipeline to the host, and bring from there to the device what is to be on it.

    Raise `InvalidModel` for what cannot be together, before any weight is read.
    """
    if plan.device.type == "cpu" and plan.kept_in is Quantization.INT8:
        raise InvalidModel(
            f"offload={plan.offload}: weights in int8 have an order of their CPU's own and stay where they "
            f"are; take another quantization, or leave it out"
        )
    pipeline = load(replace(plan, stay_on_host=True))
    components = [each for each in pipeline.components() if each.is_loaded]
    pipeline.residency = place(components, plan.offload, plan.device, copier_for(plan.device))
    return pipeline
