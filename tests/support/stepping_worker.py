"""A worker in simulated time that claims as the agent does, and steps jobs as an engine does."""

import math
import random
from dataclasses import dataclass, field, replace

from diffuserve.agent.state.capacity import EngineJob, free_capacity
from diffuserve.domain.jobs.job import Band
from diffuserve.domain.models.cost import CostFit, Workload
from diffuserve.engine.policy.scheduler import StepLimits
from diffuserve.engine.policy.sharing import StepCost
from diffuserve.tuning.simulated_engine import SimulatedEngine, SimulatedRequest
from support.simulated_queue import SimulatedJob, new_simulated_job

FIT = CostFit((3e-3, 2e-5), (4.5e-3, 3.2e-5, 1.75e-9, 1e-4), (8e-3, 5e-8))
"""Coefficients about like those of a small model on two cores."""
_STEP_TOKENS, _MAX_JOBS = 6_000, 32
_SIDES, _STEPS = (128, 192, 256), (4, 8, 12)
_PROMPT_TOKENS = 64
_ROUNDING = 1e-9


def draw_image(chance: random.Random, number: int, band: Band, now: float) -> SimulatedJob:
    """Return a job of one image, of three sizes and three numbers of steps, at its predicted cost."""
    workload = _workload(chance.choice(_SIDES), chance.choice(_STEPS))
    drawn = new_simulated_job(number, "ada", band, now, FIT.estimate(workload).seconds)
    job = replace(drawn.job, step_tokens=workload.step_tokens, input={"workload": workload})
    return replace(drawn, job=job)


def _workload(side: int, num_steps: int) -> Workload:
    return Workload(
        num_sequences=1,
        sequence_tokens=(side // 16) ** 2 + _PROMPT_TOKENS,
        text_tokens=_PROMPT_TOKENS,
        num_pixels=side**2,
        num_inference_steps=num_steps,
    )


@dataclass(frozen=True, kw_only=True)
class _JobRequest(SimulatedRequest):
    job: SimulatedJob


@dataclass
class SteppingWorker:
    """Steps the jobs that it holds together, in the order of the real scheduler.

    It takes `slowness` times as long as predicted.
    """

    slowness: float = 1.0
    held: list[SimulatedJob] = field(default_factory=list)
    now: float = 0.0
    _claimed: list[SimulatedJob] = field(default_factory=list)
    _ends: list[tuple[float, SimulatedJob]] = field(default_factory=list)

    def __post_init__(self) -> None:
        fit = FIT.scaled(self.slowness)
        limits = StepLimits(_STEP_TOKENS, 2**60, cost=StepCost(fit.step[0]))
        self._engine = SimulatedEngine(fit, lambda: limits, on_ended=self._note_end)

    @property
    def has_room(self) -> bool:
        """True if its agent would claim a job of any band."""
        in_engine = [EngineJob(each.job.band, each.job.step_tokens) for each in self.held]
        capacity = free_capacity(_MAX_JOBS, _STEP_TOKENS, in_engine, num_finishing=0)
        return capacity.num_jobs > 0 and capacity.ahead_of is None

    @property
    def next_end(self) -> float:
        """Seconds until the present step or a job ends."""
        if not self.held:
            return math.inf
        return max(0.0, min([self._engine.now, *(end for end, _ in self._ends)]) - self.now)

    def hold(self, job: SimulatedJob) -> None:
        """Start a job with the next step."""
        self.held.append(job)
        self._claimed.append(job)
        self._step_until_now()

    def work(self, seconds: float) -> list[SimulatedJob]:
        """Work for so long, and return the jobs that are done."""
        self.now += seconds
        self._step_until_now()
        now = self.now + _ROUNDING
        done = [job for end, job in self._ends if end <= now]
        self._ends = [(end, job) for end, job in self._ends if end > now]
        self.held = [job for job in self.held if job not in done]
        return done

    def _step_until_now(self) -> None:
        while self._engine.now <= self.now + _ROUNDING and (self._claimed or self._engine.is_busy):
            self._engine.now = max(self._engine.now, self.now)
            for job in self._claimed:
                self._engine.arrive(_JobRequest(self.now, job.job.input["workload"], job=job))
            self._claimed.clear()
            self._engine.advance()

    def _note_end(self, request: SimulatedRequest, seconds: float) -> None:
        assert isinstance(request, _JobRequest)
        self._ends.append((request.second + seconds, request.job))
