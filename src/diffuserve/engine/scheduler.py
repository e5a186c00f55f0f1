"""Which requests take the next step: a pure decision, no tensors and no clock (INV-5)."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Candidate:
    """A request as the scheduler sees it. Larger `priority` goes first, then smaller `arrival`.

    One that `is_alone` shares no step: it may be what broke an earlier engine.
    """

    request_id: str
    priority: int
    arrival: int
    skipped: int
    tokens: int
    step_bytes: int
    is_alone: bool = False


@dataclass(frozen=True)
class StepLimits:
    """What one step may hold."""

    tokens: int
    step_bytes: int


@dataclass(frozen=True)
class StepScheduler:
    """Fills a step by priority, then arrival.

    The first in that order always goes, alone if it must, whatever its size; after it everything
    that still fits does, so nobody waits behind a request that does not. A request rises by one
    priority for every `ageing_steps` steps it was passed over, so each becomes first in the end.
    """

    ageing_steps: int

    def select(self, candidates: Iterable[Candidate], limits: StepLimits) -> list[str]:
        """The ids of the requests that step now, in order of precedence."""
        chosen: list[str] = []
        tokens = step_bytes = 0
        for candidate in sorted(candidates, key=self._precedence):
            if candidate.is_alone and not chosen:
                return [candidate.request_id]
            if candidate.is_alone:
                continue
            fits = (
                tokens + candidate.tokens <= limits.tokens
                and step_bytes + candidate.step_bytes <= limits.step_bytes
            )
            if fits or not chosen:
                chosen.append(candidate.request_id)
                tokens += candidate.tokens
                step_bytes += candidate.step_bytes
        return chosen

    def _precedence(self, candidate: Candidate) -> tuple[int, int]:
        return (-(candidate.priority + candidate.skipped // self.ageing_steps), candidate.arrival)
