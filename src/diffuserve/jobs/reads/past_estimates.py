"""Waits that queued jobs were told, and how far from them recent jobs ended."""

from collections import defaultdict, deque
from collections.abc import Callable, Mapping

from diffuserve.domain.jobs.job import QueueEstimate
from diffuserve.jobs.policy.widening import Told, Widening, widening_after

_NUM_ENDS = 64
"""Of a model's jobs: how many ends are awaited at a time, and how many are kept."""


class PastEstimates:
    """Remembers by model what queued jobs are told until they end, and how recent ends compare with that.

    An `Outlook` owns it. Of each model it awaits the ends of at most 64 jobs at a time.
    """

    def __init__(self) -> None:
        self._told: dict[str, dict[str, Told]] = defaultdict(dict)
        self._ends: dict[str, deque[tuple[float, float]]] = defaultdict(lambda: deque(maxlen=_NUM_ENDS))
        self._widenings: dict[str, Widening] = {}

    @property
    def job_ids(self) -> list[str]:
        """The jobs whose ends are awaited."""
        return [job_id for told in self._told.values() for job_id in told]

    def widen(self, model: str, estimate: QueueEstimate) -> QueueEstimate:
        """Return the estimate, widened as the model's recent ends demand."""
        return self._widenings.get(model, Widening()).of(estimate)

    def note(self, model: str, job_id: str, at: float, estimate: QueueEstimate) -> None:
        """Remember what a job is told the first time, before it is widened."""
        told = self._told[model]
        if len(told) < _NUM_ENDS and job_id not in told and estimate.eta_s_low and estimate.eta_s_high:
            told[job_id] = Told(at, estimate.eta_s_low, estimate.eta_s_high)

    def settle(self, ended: Mapping[str, float | None]) -> None:
        """Learn when jobs succeeded; forget those that ended otherwise, which have no time."""
        for model, told in self._told.items():
            found = [(told.pop(job_id), at) for job_id, at in ended.items() if job_id in told]
            if found:
                self._ends[model].extend(each.compare(at) for each, at in found if at is not None)
                self._widenings[model] = widening_after(self._ends[model])

    def forget(self, is_void: Callable[[str], bool]) -> None:
        """Forget what jobs of models that nobody serves now were told, since no range foretells an outage."""
        for model in filter(is_void, list(self._told)):
            del self._told[model]
