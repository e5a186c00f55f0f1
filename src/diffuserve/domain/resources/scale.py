"""Numbers of workers, as autoscalers and workers ask for them."""

from dataclasses import dataclass, field

from diffuserve.domain.resource_base import Resource


@dataclass(frozen=True, kw_only=True)
class ScaleResource(Resource):
    """Number of workers that a pool should have, with the reasons, the largest of which counts."""

    pool: str
    workers: int = field(metadata={"description": "Number to have in all; of `kind=spot`, of those on spot."})
    for_work: int = field(metadata={"description": "For the work that waits and runs."})
    for_rate: int = field(metadata={"description": "For the work that is accepted per second lately."})
    floor: int = field(metadata={"description": "By `scale_floors`, at this hour."})
    predicted: int = field(
        metadata={
            "description": "For what this hour needed in earlier weeks; counts with `scale_predictive`."
        }
    )
    num_live: int = field(metadata={"description": "Workers that are there, without those that drain."})
    num_on_demand: int = field(metadata={"description": "Those of them that are not on spot machines."})


@dataclass(frozen=True, kw_only=True)
class LeavingResource(Resource):
    """Answer to a worker that is idle: whether it may leave."""

    leaves: bool = field(metadata={"description": "True if it gets no more jobs, and is to end."})
