"""Plans of tenants, as the API writes them."""

from dataclasses import dataclass, field

from diffuserve.domain.jobs.job import Band
from diffuserve.domain.resource_base import Resource
from diffuserve.domain.tenant import Plan


@dataclass(frozen=True, kw_only=True)
class PlanResource(Plan, Resource):
    """Plan of the caller's tenant, with its own limits applied; a limit that is null is none."""

    priorities: tuple[Band, ...] = field(
        metadata={"description": "The values of `priority` that the plan allows, best first."}
    )
