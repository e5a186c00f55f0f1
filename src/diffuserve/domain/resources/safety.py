"""Filters and their verdicts, as the API writes them."""

from dataclasses import dataclass

from diffuserve.domain.resource_base import Resource
from diffuserve.domain.safety import Action, FilterInfo


@dataclass(frozen=True, kw_only=True)
class FilterResource(FilterInfo, Resource):
    """Filter that gave a verdict; thresholds are scores in 0…1."""


@dataclass(frozen=True, kw_only=True)
class FindingResource(Resource):
    """Finding without its detail, which may quote the prompt."""

    category: str
    action: Action
    source: str
    score: float


@dataclass(frozen=True, kw_only=True)
class VerdictResource(Resource):
    """Findings on a prompt; `action` is that of the strictest."""

    action: Action
    findings: tuple[FindingResource, ...]
