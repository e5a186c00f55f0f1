"""Costs of 1,000 images, on machines of given prices and rates, and as a server measured them."""

from collections.abc import Sequence
from dataclasses import dataclass

from diffuserve.domain.jobs.outcomes import USEFUL_OUTCOMES
from diffuserve.domain.resource_base import Resource
from diffuserve.domain.resources.usage import (
    UsageField,
    UsageResource,
    UsageRowResource,
    WorkerTimeResource,
)
from diffuserve.domain.workers.machines import MachineKind

MEASURED_BY = (UsageField.MODEL, UsageField.KIND, UsageField.OUTCOME)
"""Fields by which the use must be told apart that costs are measured from."""

_HOUR = 3_600.0


def cost_of_thousand(price_per_hour: float, images_per_hour: float, useful_share: float = 1.0) -> float:
    """Return what 1,000 images cost on a machine that draws `images_per_hour` while it is busy with them.

    It is that for the part `useful_share`, in 0…1, of its time; the rest is loading, waiting and lost work.
    """
    return 1_000.0 * price_per_hour / (images_per_hour * useful_share)


@dataclass(frozen=True, kw_only=True)
class MeasuredCost(Resource):
    """Costs of a model's images on a kind of machine, which was useful for `useful_share` of its time.

    `images_per_hour` are those of a machine that does nothing else. `p95` are the seconds from first lease to
    end that 95 of 100 of the model's jobs did not exceed, on whatever kind. 1,000 images cost `per_thousand`,
    and would cost `per_thousand_busy` on machines that are always busy with them.
    """

    model: str
    kind: MachineKind
    num_images: int
    images_per_hour: float
    price_per_hour: float
    useful_share: float
    p95: float | None
    per_thousand: float
    per_thousand_busy: float


@dataclass(frozen=True, kw_only=True)
class CostReport(Resource):
    """Costs of a server's images, and the use that they follow from."""

    costs: tuple[MeasuredCost, ...]
    usage: UsageResource


def measured_costs(usage: UsageResource) -> list[MeasuredCost]:
    """Return the costs of the models that have images, from an operator's use by `MEASURED_BY`."""
    fleet = usage.fleet
    if fleet is None:
        return []
    p95 = {times.model: times.p95 for times in fleet.run_times}
    return [
        _measured(machines, of_kind, model, p95.get(model))
        for machines in fleet.machines
        if (of_kind := [row for row in usage.data if _is_useful(row) and row.kind is machines.kind])
        for model in sorted({row.model for row in of_kind if row.model is not None and row.num_images})
    ]


def _is_useful(row: UsageRowResource) -> bool:
    return row.outcome in USEFUL_OUTCOMES and row.seconds > 0


def _measured(
    machines: WorkerTimeResource, of_kind: Sequence[UsageRowResource], model: str, p95: float | None
) -> MeasuredCost:
    """Return a model's cost on machines of a kind, whose useful attempts of all models are `of_kind`."""
    own = [row for row in of_kind if row.model == model]
    seconds, num_images = sum(row.seconds for row in own), sum(row.num_images for row in own)
    useful = sum(row.seconds for row in of_kind)
    useful_share = useful / max(machines.seconds, useful)  # a worker counts up to its last message
    images_per_hour = num_images / seconds * _HOUR
    price_per_hour = sum(row.cost for row in own) / seconds * _HOUR
    return MeasuredCost(
        model=model,
        kind=machines.kind,
        num_images=num_images,
        images_per_hour=images_per_hour,
        price_per_hour=price_per_hour,
        useful_share=useful_share,
        p95=p95,
        per_thousand=cost_of_thousand(price_per_hour, images_per_hour, useful_share),
        per_thousand_busy=cost_of_thousand(price_per_hour, images_per_hour),
    )
