"""Claims of workers: for as many jobs as fit, or only for jobs that go before those in the engine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from diffuserve.domain.bounds import AllPrintable, Printable
from diffuserve.domain.jobs.job import Band

MAX_MODELS_OF_KEY = 100
"""Models that the live workers of an API key offer together."""
_few_models = Field(max_length=MAX_MODELS_OF_KEY)
_Models = Annotated[tuple[str, ...], _few_models, AllPrintable]


@dataclass(frozen=True, kw_only=True)
class EnginePlace:
    """Place in the order in which an engine runs jobs: by band, then by the size beyond a step's limit.

    `step_tokens` are 0 for jobs that fit into a step: those of one band share steps as equals.
    """

    band: Band
    step_tokens: int = 0

    @property
    def order(self) -> tuple[int, int]:
        """Return the sort key of places."""
        return (self.band.rank, self.step_tokens)

    @property
    def worst_before(self) -> Band | None:
        """The worst band of jobs that go before this place; `None` if none do."""
        bands = [band for band in Band if (band.rank, 0) < self.order]
        return max(bands, key=lambda band: band.rank, default=None)

    def is_after(self, band: Band, step_tokens: int) -> bool:
        """Return whether a job of this band and so many tokens goes before this place."""
        return (band.rank, step_tokens) < self.order


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Request for leases: at most `num_jobs`, with at most `num_tokens` per step in all.

    A single job may exceed `num_tokens`. The same `claim_id` gets the same leases again, so a lost response
    loses no job. For models in `ahead_of` the engine has enough work: their jobs are wanted only if they go
    before the given place.
    """

    claim_id: Annotated[Printable, Field(max_length=64)]
    num_jobs: Annotated[int, Field(ge=1)]
    num_tokens: int | None = None
    models: _Models = ()
    resident_models: _Models = ()
    ahead_of: Annotated[Mapping[str, EnginePlace], _few_models, AllPrintable] = field(default_factory=dict)

    def wants(self, model: str, band: Band, step_tokens: int = 0) -> bool:
        """Return whether a job is wanted: of this model and band, and of so many tokens in a step."""
        place = self.ahead_of.get(model)
        return place is None or place.is_after(band, step_tokens)

    @property
    def worst_band(self) -> Band | None:
        """The worst band of jobs that are wanted; `None` if none are."""
        if not self.models or any(model not in self.ahead_of for model in self.models):
            return Band.BATCH
        worst = [band for place in self.ahead_of.values() if (band := place.worst_before) is not None]
        return max(worst, key=lambda band: band.rank, default=None)
