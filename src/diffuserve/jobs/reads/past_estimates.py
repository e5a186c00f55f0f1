"""Waits that queued jobs were told, and how far from them recent jobs ended."""

from collections import deque
from collections.abc import Callable, Mapping

from cachetools import LRUCache

from diffuserve.domain.jobs.job import Job, QueueEstimate
from diffuserve.jobs.policy.widening import Told, Widening, widening_after

_NUM_ENDS = 64
"""Of a tenant's jobs of a model: how many ends are awaited at a time, and how many are kept."""
_MAX_AWAITED = 512
_MAX_KEPT = 1_000

_Whose = tuple[str, str]
"""A tenant and a model."""


class PastEstimates:
    """Remembers what queued jobs are told until they end, and how recent ends compare with that.

    Tenants learn from their own jobs alone. One that lets its own jobs wait, behind more urgent ones of its
    own, would else widen everybody's ranges. An `Outlook` owns it. It awaits the ends of at most 512 jobs.
    """

    def __init__(self) -> None:
        self._told: dict[_Whose, dict[str, Told]] = {}
        self._ends: LRUCache[_Whose, deque[tuple[float, float]]] = LRUCache(_MAX_KEPT)
        self._widenings: LRUCache[_Whose, Widening] = LRUCache(_MAX_KEPT)

    @property
    def job_ids(self) -> list[str]:
        """The jobs whose ends are awaited."""
        return [job_id for told in self._told.values() for job_id in told]

    def widen(self, job: Job, estimate: QueueEstimate) -> QueueEstimate:
        """Return the estimate, widened as recent ends of such jobs of its tenant demand."""
        return self._widenings.get(_whose(job), Widening()).of(estimate)

    def note(self, job: Job, at: float, estimate: QueueEstimate) -> None:
        """Remember what a job is told the first time, before it is widened."""
        told = self._told.setdefault(_whose(job), {})
        has_room = len(told) < _NUM_ENDS and sum(map(len, self._told.values())) < _MAX_AWAITED
        if has_room and job.id not in told and estimate.eta_s_low and estimate.eta_s_high:
            told[job.id] = Told(at, estimate.eta_s_low, estimate.eta_s_high)

    def settle(self, ended: Mapping[str, float | None]) -> None:
        """Learn when jobs succeeded; forget those that ended otherwise, which have no time."""
        for whose, told in [*self._told.items()]:
            found = [(told.pop(job_id), ended[job_id]) for job_id in ended.keys() & told]
            if not told:
                del self._told[whose]
            if found:
                ends = self._ends.setdefault(whose, deque(maxlen=_NUM_ENDS))
                ends.extend(each.compare(at) for each, at in found if at is not None)
                self._widenings[whose] = widening_after(ends)

    def forget(self, is_void: Callable[[str], bool]) -> None:
        """Forget what jobs of models that nobody serves now were told, since no range foretells an outage."""
        self._told = {(who, model): told for (who, model), told in self._told.items() if not is_void(model)}


def _whose(job: Job) -> _Whose:
    return job.tenant_id, job.model
