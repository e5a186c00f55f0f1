"""The choice of the requests that take the next step: a pure decision, no tensors and no clock (INV-5)."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

_COMPANY = 4  # tokens of a step's first priority for each token of lower ones


@dataclass(frozen=True)
class Candidate:
    """A request as the scheduler sees it. Larger `priority` goes first, then smaller `arrival`.

    `skipped` counts the steps in which other requests went first, `step` those that it has done itself, of
    `num_steps`. A request that `is_alone` shares no step: it may be the cause of an earlier engine's death.
    `held_bytes` are those that it gives back if it is swapped out.

    `tokens` and `step_bytes` are those of its turn, the next of `turns_left` in its step: one whose
    `step_tokens` exceed a step's takes it in several. Without them the turn is its whole step.
    """

    request_id: str
    priority: int
    arrival: int
    skipped: int
    tokens: int
    step_bytes: int
    is_alone: bool = False
    held_bytes: int = 0
    num_steps: int = 1
    step: int = 0
    turns_left: int = 1
    step_tokens: int = 0

    def excess(self, limits: "StepLimits") -> int:
        """Return the tokens of its step beyond those that a step may have."""
        return max(0, max(self.tokens, self.step_tokens) - limits.tokens)

    def after_turn(self) -> "Candidate":
        """Return the request after its turn, as far as it is known now."""
        if self.turns_left > 1:
            return replace(self, turns_left=self.turns_left - 1)
        return replace(self, step=self.step + 1)


@dataclass(frozen=True)
class StepLimits:
    """The budgets of one step: packed tokens, predicted peak memory in bytes, and, if given, requests."""

    tokens: int
    step_bytes: int
    num_requests: int | None = None


@dataclass
class _Step:
    """A step that is filled; `first` leads it, and `company` counts the tokens of those of lower priority."""

    limits: StepLimits
    first: Candidate
    request_ids: list[str] = field(default_factory=list)
    tokens: int = 0
    step_bytes: int = 0
    company: int = 0

    def has_room(self, candidate: Candidate, is_company: bool) -> bool:
        company = self.company + candidate.tokens if is_company else 0
        return (
            (self.limits.num_requests is None or len(self.request_ids) < self.limits.num_requests)
            and self.tokens + candidate.tokens <= self.limits.tokens
            and self.step_bytes + candidate.step_bytes <= self.limits.step_bytes
            and company * _COMPANY <= self.tokens - self.company
        )

    def add(self, candidate: Candidate, is_company: bool) -> None:
        self.request_ids.append(candidate.request_id)
        self.tokens += candidate.tokens
        self.step_bytes += candidate.step_bytes
        self.company += candidate.tokens if is_company else 0


@dataclass(frozen=True)
class StepScheduler:
    """Fills a step by priority, then arrival; what exceeds a step's tokens by itself goes after the others.

    Such a request, a long clip or many images, goes the later the more it exceeds them. So the few steps of
    small requests, which arrive while it is drawn, go between its own, and it waits for them until ageing
    puts it first. That is for one turn, after which it is as young as when it came: with all of its age it
    would go before whatever comes, turn after turn, until its end.

    The first request in that order always goes, alone if it must, whatever its size; after it goes
    every request that still fits, so none waits behind a request that does not fit. Those of a lower
    priority than the first add a fourth to its step's tokens at most. A request rises by one priority for
    every `ageing_steps` steps it was skipped, so each becomes first in the end.

    With `same_steps_only` a step is shared only by requests with as many steps and as many of them done, as
    in a static batch. An idle engine waits up to `max_wait_seconds` for company before it starts.
    """

    ageing_steps: int
    same_steps_only: bool = False
    max_wait_seconds: float = 0.0

    def select(self, candidates: Iterable[Candidate], limits: StepLimits) -> list[str]:
        """Return the ids of the requests that take the next step, in order of precedence."""
        step = self._fill(candidates, limits)
        return [] if step is None else step.request_ids

    def select_after(
        self, candidates: Iterable[Candidate], chosen: Collection[str], limits: StepLimits
    ) -> list[str]:
        """Return the ids of those that take the step after that of the `chosen`, if none arrives or fails."""
        after = [each.after_turn() if each.request_id in chosen else each for each in candidates]
        return self.select([each for each in after if each.step < each.num_steps], limits)

    def skipped_after_turn(self, skipped: int, step_tokens: int, limits: StepLimits) -> int:
        """Return how often a request of so many tokens counts as skipped after a step of its own."""
        return 0 if step_tokens > limits.tokens else skipped

    def swapped_out(self, waiting: Iterable[Candidate], limits: StepLimits, excess_bytes: int) -> list[str]:
        """Return the waiting requests that give back what they hold: the last ones, until it is enough."""
        chosen = []
        for candidate in sorted(waiting, key=lambda each: self._precedence(each, limits), reverse=True):
            if excess_bytes <= 0:
                break
            if candidate.held_bytes:
                chosen.append(candidate.request_id)
                excess_bytes -= candidate.held_bytes
        return chosen

    def seconds_to_wait(
        self, candidates: Sequence[Candidate], limits: StepLimits, waited_seconds: float
    ) -> float:
        """Return how long the next step should still wait for company; 0 if it is full, or has to start.

        Only an idle engine waits, in which no request has done a step. `waited_seconds` is the longest that a
        request has waited so far.
        """
        left = self.max_wait_seconds - waited_seconds
        if left <= 0 or any(candidate.step for candidate in candidates):
            return 0.0
        step = self._fill(candidates, limits)
        if step is None or step.first.is_alone:
            return 0.0
        return left if step.has_room(step.first, is_company=False) else 0.0

    def _fill(self, candidates: Iterable[Candidate], limits: StepLimits) -> _Step | None:
        ordered = sorted(candidates, key=lambda each: self._precedence(each, limits))
        if not ordered:
            return None
        step = _Step(limits, ordered[0])
        for candidate in ordered:
            is_company = self._is_company(candidate, step.first)
            if candidate is step.first or (
                self._may_share(candidate, step.first) and step.has_room(candidate, is_company)
            ):
                step.add(candidate, is_company)
        return step

    def _may_share(self, candidate: Candidate, first: Candidate) -> bool:
        """Return whether a request may take a step together with the first, as far as there is room."""
        is_in_step = (candidate.num_steps, candidate.step) == (first.num_steps, first.step)
        return not (candidate.is_alone or first.is_alone) and (is_in_step or not self.same_steps_only)

    def _is_company(self, candidate: Candidate, first: Candidate) -> bool:
        """Return whether a request is of a lower priority than the first, which its age does not make up."""
        return candidate.priority < first.priority and self._aged(candidate) < self._aged(first)

    def _aged(self, candidate: Candidate) -> int:
        return candidate.priority + candidate.skipped // self.ageing_steps

    def _precedence(self, candidate: Candidate, limits: StepLimits) -> tuple[int, int, int]:
        return (-self._aged(candidate), candidate.excess(limits), candidate.arrival)
