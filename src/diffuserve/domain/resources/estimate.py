"""What a job would take, told before it is submitted."""

from dataclasses import dataclass, field

from diffuserve.domain.resource_base import Resource


@dataclass(frozen=True, kw_only=True)
class EstimateResource(Resource):
    """Estimate of a job: its price, its end, and what its result would warn of."""

    model: str
    width: int | None = field(metadata={"description": "Of its images, by the request and the model."})
    height: int | None
    cost_seconds: float = field(
        metadata={"description": "Predicted device-seconds, which a job alone on a worker takes."}
    )
    eta_s_low: float | None = field(
        metadata={
            "description": "Seconds in which it is likely finished, if it is submitted now: from this to "
            "`eta_s_high`. Both are null while no worker is ready for its model."
        }
    )
    eta_s_high: float | None
    warnings: tuple[str, ...]
