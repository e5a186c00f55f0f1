"""The choice of the requests that take the next step: a pure decision, no tensors and no clock (INV-5)."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Candidate:
    """A request as the scheduler sees it. Larger `priority` goes first, then smaller `arrival`.

    `skipped` counts the steps in which other requests went first. A request that `is_alone` shares no
    step: it may be the cause of an earlier engine's death.
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
    """The budgets of one step: packed tokens, and predicted peak memory in bytes."""

    tokens: int
    step_bytes: int


@dataclass(frozen=True)
class StepScheduler:
    """Fills a step by priority, then arrival; what exceeds a step's tokens by itself goes after the others.

    Such a request, a long clip, shares no step. So the few steps of small requests, which arrive while it
    is drawn, go between its own, and it waits for them until ageing puts it first.

    The first request in that order always goes, alone if it must, whatever its size; after it goes
    every request that still fits, so none waits behind a request that does not fit. A request rises by
    one priority for every `ageing_steps` steps it was skipped, so each becomes first in the end.
    """

    ageing_steps: int

    def select(self, candidates: Iterable[Candidate], limits: StepLimits) -> list[str]:
        """Return the ids of the requests that take the next step, in order of precedence."""
        chosen: list[str] = []
        tokens = step_bytes = 0
        for candidate in sorted(candidates, key=lambda each: self._precedence(each, limits)):
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

    def _precedence(self, candidate: Candidate, limits: StepLimits) -> tuple[int, bool, int]:
        aged = candidate.priority + candidate.skipped // self.ageing_steps
        return (-aged, candidate.tokens > limits.tokens, candidate.arrival)
