"""The capacity that a worker may claim; pure functions except for the check of the disk."""

import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from diffuserve.domain.jobs.claim import EnginePlace
from diffuserve.domain.jobs.job import Band

MIN_FREE_BYTES = 256 * 1024 * 1024
"""Free bytes of the folder for temporary files below which no job is claimed: there results wait."""
_KEPT = 8  # one place in so many is reserved for more urgent jobs


@dataclass(frozen=True)
class Capacity:
    """The jobs and tokens of a step that may be claimed; with a place, only jobs that go before it."""

    num_jobs: int
    num_tokens: int
    ahead_of: EnginePlace | None = None


NO_CAPACITY = Capacity(0, 0)


@dataclass(frozen=True)
class ClaimScope:
    """The models that jobs may be claimed for, which of them are resident, and the capacity for each.

    For models in `ahead_of`, only jobs before the given place may be claimed.
    """

    capacity: Capacity
    models: tuple[str, ...] = ()
    resident_models: tuple[str, ...] = ()
    ahead_of: Mapping[str, EnginePlace] = field(default_factory=dict)

    @property
    def wanted(self) -> tuple[object, ...]:
        """The kinds of jobs that may be claimed, regardless of their number."""
        return (self.models, self.ahead_of)


NO_ROOM = ClaimScope(NO_CAPACITY)


@dataclass(frozen=True)
class EngineJob:
    """A job in the engine: its band and its tokens in a step."""

    band: Band
    step_tokens: int

    def place(self, token_budget: int) -> EnginePlace:
        """Return its place in the engine's order."""
        return EnginePlace(
            band=self.band, step_tokens=self.step_tokens if self.step_tokens > token_budget else 0
        )


def free_capacity(
    max_jobs: int,
    token_budget: int,
    in_engine: Sequence[EngineJob],
    num_finishing: int,
    is_storage_away: bool = False,
) -> Capacity:
    """Return one step's worth beyond the running step, so that the engine never waits for the network.

    A job larger than a step counts as one step, since others may run between its turns. `num_finishing` jobs
    have left the engine and are being uploaded. In total at most four times `max_jobs` jobs are held, and
    only `max_jobs` while the artifact store is unavailable. Without a free token no job may be claimed, since
    a claim returns at least one.

    Even a full engine has room for a job that goes before the last of its jobs, which then wait for it. An
    eighth of the places is reserved for such jobs.
    """
    max_held = max_jobs if is_storage_away else 4 * max_jobs
    jobs = min(max_jobs - len(in_engine), max_held - len(in_engine) - num_finishing)
    if jobs <= 0:
        return NO_CAPACITY
    kept = max_jobs // _KEPT
    if jobs > kept and (tokens := _free_tokens(token_budget, in_engine)) > 0:
        return Capacity(jobs - kept, tokens)
    return _kept_capacity(token_budget, in_engine)


def _kept_capacity(token_budget: int, in_engine: Sequence[EngineJob]) -> Capacity:
    """Return the reserved room for a job that goes before others in the engine."""
    for last in sorted({job.place(token_budget) for job in in_engine}, key=_order, reverse=True):
        ahead = [job for job in in_engine if _order(job.place(token_budget)) < _order(last)]
        tokens = _free_tokens(token_budget, ahead)
        if tokens > 0 and last.worst_before is not None:
            return Capacity(1, tokens, last)
    return NO_CAPACITY


def _free_tokens(token_budget: int, in_engine: Iterable[EngineJob]) -> int:
    return 2 * token_budget - sum(min(job.step_tokens, token_budget) for job in in_engine)


def _order(place: EnginePlace) -> tuple[int, int]:
    return place.order


def is_disk_short() -> bool:
    """Return whether the folder for temporary files has no room for more results."""
    return shutil.disk_usage(tempfile.gettempdir()).free < MIN_FREE_BYTES
