"""The choice of the requests that take the next step: a pure decision, no tensors and no clock (INV-5)."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from diffuserve.engine.policy.sharing import StepCost, Work
from diffuserve.engine.policy.step_order import StepOrder, shortest_first

_LOWER_SHARE = 4  # tokens of a step's first priority for each token of lower ones


@dataclass(frozen=True)
class Candidate:
    """A request as the scheduler sees it. Larger `priority` goes first.

    `skipped` counts the steps in which other requests went first; `step` of `num_steps` steps are done. A
    request that `is_alone` shares no step: it may be what killed an earlier engine. `held_bytes` are freed
    if it is swapped out. A step of its own would take `step_seconds`, and its next turn adds `turn_seconds`
    to a step that it shares; the engine's steps since it arrived took `age_seconds`. All are predicted.

    A request whose `step_tokens` exceed the limit of a step takes its step in several turns, of which
    `turns_left` remain; otherwise its turn is its whole step. `tokens` and `step_bytes` describe its next
    turn.
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
    step_seconds: float = 0.0
    turn_seconds: float = 0.0
    age_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Predicted seconds of all of its steps."""
        return self.num_steps * self.step_seconds

    @property
    def remaining_seconds(self) -> float:
        """Predicted seconds of the steps that are left."""
        return (self.num_steps - self.step) * self.step_seconds

    @property
    def work(self) -> Work:
        """Return what its next turn adds to a step."""
        return Work(self.tokens, self.turn_seconds)

    def excess(self, limits: "StepLimits") -> int:
        """Return by how many tokens its own step exceeds the limit of a step."""
        return max(0, max(self.tokens, self.step_tokens) - limits.tokens)

    def after_turn(self) -> "Candidate":
        """Return the request after its turn, as far as it is known now."""
        if self.turns_left > 1:
            return replace(self, turns_left=self.turns_left - 1)
        return replace(self, step=self.step + 1)


@dataclass(frozen=True)
class StepLimits:
    """The budgets of one step: packed tokens, predicted peak memory in bytes, and, if given, requests.

    With `encodes_ahead` prompts of requests that wait may be encoded along with those of the step. If its
    `cost` is given, a step is no larger than is worthwhile by it.
    """

    tokens: int
    step_bytes: int
    num_requests: int | None = None
    encodes_ahead: bool = True
    cost: StepCost | None = None


@dataclass
class _Step:
    """A step being filled; `first` leads it, and `lower_tokens` are those of lower-priority requests.

    `worthwhile` are the seconds of work that each priority may bring, without which they have no bound.
    """

    limits: StepLimits
    first: Candidate
    worthwhile: Mapping[int, float]
    seconds: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    request_ids: list[str] = field(default_factory=list)
    tokens: int = 0
    step_bytes: int = 0
    lower_tokens: int = 0

    def has_room(self, candidate: Candidate, is_lower: bool) -> bool:
        lower_tokens = self.lower_tokens + candidate.tokens if is_lower else 0
        return (
            (self.limits.num_requests is None or len(self.request_ids) < self.limits.num_requests)
            and self.tokens + candidate.tokens <= self.limits.tokens
            and self.step_bytes + candidate.step_bytes <= self.limits.step_bytes
            and lower_tokens * _LOWER_SHARE <= self.tokens - self.lower_tokens
        )

    def is_worthwhile(self, candidate: Candidate) -> bool:
        priority = candidate.priority
        most = self.worthwhile.get(priority, float("inf"))
        return self.seconds[priority] + candidate.turn_seconds <= most

    def add(self, candidate: Candidate, is_lower: bool) -> None:
        self.request_ids.append(candidate.request_id)
        self.seconds[candidate.priority] += candidate.turn_seconds
        self.tokens += candidate.tokens
        self.step_bytes += candidate.step_bytes
        self.lower_tokens += candidate.tokens if is_lower else 0


@dataclass(frozen=True)
class StepScheduler:
    """Fills a step by priority, then in its `order`, and no larger than its limits.

    A request rises by one priority for every `ageing_steps` steps in which it was skipped, so each becomes
    first in the end. The first one always runs, whatever its size, if need be by itself; then every request
    that still fits is added, so none waits behind a request that does not fit. Requests of a lower priority
    than the first add at most a fourth to the step's tokens. The others share it as far as that is
    worthwhile, each priority for itself: one that has aged keeps out none of the first's.

    In the order `SHORTEST` only steps led by a higher priority count as skipped; among equals the delay of
    `shortest_first` bounds the wait.

    In the order `ARRIVAL` requests that exceed a step's tokens by themselves go last. The more such a request
    exceeds the limit (a long clip, or many images), the later it goes. Small requests that arrive meanwhile
    run their few steps between its turns, and it waits for them until ageing puts it first. In both orders it
    is then first for one turn only, and its age starts again at zero: otherwise it would stay ahead of every
    newcomer until its end.

    With `same_steps_only` a step is shared only by requests with the same number of steps, and of steps
    done, as in a static batch. An idle engine waits up to `max_wait_seconds` for other requests before it
    starts.
    """

    ageing_steps: int
    order: StepOrder = StepOrder.SHORTEST
    same_steps_only: bool = False
    max_wait_seconds: float = 0.0

    def select(self, candidates: Iterable[Candidate], limits: StepLimits) -> list[str]:
        """Return the ids of the requests that take the next step, in order of precedence."""
        step = self._fill(candidates, limits)
        return [] if step is None else step.request_ids

    def select_after(
        self, candidates: Iterable[Candidate], chosen: Collection[str], limits: StepLimits
    ) -> list[str]:
        """Return the ids of the requests of the step after that of `chosen`, if none arrives or fails."""
        after = [each.after_turn() if each.request_id in chosen else each for each in candidates]
        return self.select([each for each in after if each.step < each.num_steps], limits)

    def is_skipped(self, priority: int, first_priority: int) -> bool:
        """Return whether a step of others, led by a request of `first_priority`, counts as skipped."""
        return self.order == StepOrder.ARRIVAL or priority < first_priority

    def skipped_after_turn(self, skipped: int, step_tokens: int, limits: StepLimits) -> int:
        """Return a request's `skipped` after a step of its own: 0 if it exceeds a step's tokens."""
        return 0 if step_tokens > limits.tokens else skipped

    def swapped_out(self, waiting: Iterable[Candidate], limits: StepLimits, excess_bytes: int) -> list[str]:
        """Return the waiting requests to swap out: last in precedence first, until enough bytes are freed."""
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
        """Return how much longer the next step should wait for other requests; 0 if it should start now.

        Only an idle engine waits, one in which no request has done a step. `waited_seconds` is the longest
        time that a request has waited so far.
        """
        left = self.max_wait_seconds - waited_seconds
        if left <= 0 or any(candidate.step for candidate in candidates):
            return 0.0
        step = self._fill(candidates, limits)
        if step is None or step.first.is_alone:
            return 0.0
        return left if step.has_room(step.first, is_lower=False) else 0.0

    def _fill(self, candidates: Iterable[Candidate], limits: StepLimits) -> _Step | None:
        ordered = sorted(candidates, key=lambda each: self._precedence(each, limits))
        if not ordered:
            return None
        first = ordered[0]
        sharing = [each for each in ordered if each is first or self._may_share(each, first)]
        step = _Step(limits, first, _worthwhile(sharing, limits.cost))
        for candidate in sharing:
            is_lower = self._is_lower(candidate, first)
            has_place = step.has_room(candidate, is_lower) and (is_lower or step.is_worthwhile(candidate))
            if candidate is first or has_place:
                step.add(candidate, is_lower)
        return step

    def _may_share(self, candidate: Candidate, first: Candidate) -> bool:
        """Return whether a request may share the first one's step, if there is room."""
        is_in_step = (candidate.num_steps, candidate.step) == (first.num_steps, first.step)
        return not (candidate.is_alone or first.is_alone) and (is_in_step or not self.same_steps_only)

    def _is_lower(self, candidate: Candidate, first: Candidate) -> bool:
        """Return whether a request's priority is lower than the first one's even with its age counted."""
        return candidate.priority < first.priority and self._aged(candidate) < self._aged(first)

    def _aged(self, candidate: Candidate) -> int:
        return candidate.priority + candidate.skipped // self.ageing_steps

    def _precedence(self, candidate: Candidate, limits: StepLimits) -> tuple[int, int, float, int]:
        if self.order == StepOrder.ARRIVAL:
            place = (candidate.excess(limits), 0.0)
        else:
            place = shortest_first(candidate.remaining_seconds, candidate.seconds, candidate.age_seconds)
        return (-self._aged(candidate), *place, candidate.arrival)


def _worthwhile(sharing: Iterable[Candidate], cost: StepCost | None) -> dict[int, float]:
    """Return the seconds of work that requests of each priority should bring to a step."""
    if cost is None:
        return {}
    of_priority: dict[int, list[Work]] = defaultdict(list)
    for candidate in sharing:
        of_priority[candidate.priority].append(candidate.work)
    return {priority: cost.worthwhile_seconds(works) for priority, works in of_priority.items()}
