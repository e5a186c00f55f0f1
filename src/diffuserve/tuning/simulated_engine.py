"""An engine in arithmetic: the real scheduler, and the seconds that a cost fit predicts.

A simulation takes milliseconds where a trial takes a minute. It ranks options; what is kept is measured.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from diffuserve.domain.models.cost import CostFit, Workload
from diffuserve.engine.policy.scheduler import Candidate, StepLimits, StepScheduler
from diffuserve.engine.policy.sharing import StepCost, Work

_NO_MEMORY_LIMIT = 2**60
_AGEING_STEPS = 16


@dataclass(frozen=True)
class SimulatedRequest:
    """A request of this size that arrives at a second."""

    second: float
    workload: Workload
    priority: int = 0


@dataclass(frozen=True)
class SimulatedStep:
    """A step: the second at which it ended, how long it took, and the requests and tokens in it."""

    ended: float
    seconds: float
    num_requests: int
    num_tokens: int


@dataclass
class SimulatedEngine:
    """Plays requests in the order in which they arrive.

    `limits` are asked for before each step. With `num_slots` core slots a step's tokens are shared by as many
    threads; while images wait to be decoded, steps and decoding have half of the device each. `on_step` and
    `on_ended`, which gets a request with its seconds since it arrived, hear of what happens.
    """

    fit: CostFit
    limits: Callable[[], StepLimits]
    num_slots: int = 1
    scheduler: StepScheduler = field(default_factory=lambda: StepScheduler(_AGEING_STEPS))
    on_step: Callable[[SimulatedStep], None] = lambda _step: None
    on_ended: Callable[[SimulatedRequest, float], None] = lambda _request, _seconds: None
    now: float = 0.0
    _num_arrived: int = 0
    _waiting: dict[str, tuple[SimulatedRequest, Candidate]] = field(default_factory=dict)
    _decodes: list[tuple[SimulatedRequest, float]] = field(default_factory=list)

    @property
    def unfinished(self) -> list[float]:
        """The seconds at which the requests arrived that have not ended."""
        return [request.second for request, _ in (*self._waiting.values(), *self._decodes)]

    def play(self, requests: Sequence[SimulatedRequest]) -> Iterator[float]:
        """Yield the seconds of each request from its arrival to its images, in the order of their ends."""
        coming = list(reversed(requests))
        while coming or self.is_busy:
            while coming and coming[-1].second <= self.now:
                self.arrive(coming.pop())
            if self.is_busy:
                yield from self.advance()
            else:
                self.now = coming[-1].second

    @property
    def is_busy(self) -> bool:
        """True if a request waits for a step or to be decoded."""
        return bool(self._waiting or self._decodes)

    def advance(self) -> list[float]:
        """Do a step, or decode; return the seconds from arrival to end of the requests that ended."""
        ended: list[float] = []
        if self._waiting:
            self._step(ended)
        else:
            self._decode(self._decodes[0][1], ended)
        return ended

    def arrive(self, request: SimulatedRequest) -> None:
        """Take in a request that has arrived by now."""
        self._num_arrived += 1
        name, workload = str(self._num_arrived), request.workload
        self._waiting[name] = (
            request,
            Candidate(
                request_id=name,
                priority=request.priority,
                arrival=self._num_arrived,
                skipped=0,
                tokens=workload.step_tokens,
                step_bytes=0,
                num_steps=workload.num_inference_steps,
                step_tokens=workload.step_tokens,
                step_seconds=self.fit.step_seconds([workload]),
                turn_seconds=self.fit.added_seconds([workload]),
            ),
        )

    def _step(self, ended: list[float]) -> None:
        chosen = self.scheduler.select([each for _, each in self._waiting.values()], self.limits())
        seconds = self._seconds_of(chosen)
        self._decode(seconds / 2 if self._decodes else 0.0, ended, passing=seconds)
        tokens = sum(self._waiting[name][1].tokens for name in chosen)
        self.on_step(SimulatedStep(self.now, seconds, len(chosen), tokens))
        first = self._waiting[chosen[0]][1].priority
        for name, (request, candidate) in self._waiting.items():
            is_skipped = name not in chosen and self.scheduler.is_skipped(candidate.priority, first)
            aged = replace(
                candidate,
                skipped=candidate.skipped + is_skipped,
                age_seconds=candidate.age_seconds + seconds,
            )
            self._waiting[name] = (request, aged)
        for name in chosen:
            self._advance(name)

    def _seconds_of(self, chosen: Sequence[str]) -> float:
        """Return how long a step takes, with the encoding of those for whom it is the first."""
        entries = [self._waiting[name] for name in chosen]
        new = [request.workload for request, candidate in entries if candidate.step == 0]
        encoding = self.fit.encode_seconds(new) if new else 0.0
        slots = max(1, self.num_slots // 2) if self._decodes else self.num_slots
        work = Work(
            sum(candidate.tokens for _, candidate in entries),
            self.fit.added_seconds([request.workload for request, _ in entries]),
        )
        return encoding + StepCost(self.fit.step[0], min(slots, len(chosen))).seconds(work)

    def _advance(self, name: str) -> None:
        request, candidate = self._waiting[name]
        candidate = replace(candidate, step=candidate.step + 1)
        self._waiting[name] = (request, candidate)
        if candidate.step == candidate.num_steps:
            del self._waiting[name]
            self._decodes.append((request, self.fit.decode_seconds([request.workload])))

    def _decode(self, done: float, ended: list[float], passing: float | None = None) -> None:
        """Decode for `done` seconds of the device while `passing` seconds pass, first come, first served."""
        start, self.now = self.now, self.now + (done if passing is None else passing)
        decoded = 0.0
        while self._decodes and decoded + self._decodes[0][1] <= done + 1e-12:
            request, seconds = self._decodes.pop(0)
            decoded += seconds
            at = start + (self.now - start) * (decoded / done if done else 1.0)
            ended.append(at - request.second)
            self.on_ended(request, at - request.second)
        if self._decodes and done > decoded:
            request, seconds = self._decodes[0]
            self._decodes[0] = (request, seconds - (done - decoded))


def fixed(
    tokens: int, num_requests: int | None = None, cost: StepCost | None = None
) -> Callable[[], StepLimits]:
    """Return limits that stay as they are, without one of memory."""
    limits = StepLimits(tokens, _NO_MEMORY_LIMIT, num_requests, cost=cost)
    return lambda: limits
