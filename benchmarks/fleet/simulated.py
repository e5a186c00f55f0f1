"""The trace on Kubernetes with KEDA, by the simulator of fleets that follow their load."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.fleet.figures import Course, Struck
from benchmarks.fleet.trace import LEAST, MOST, LossKind, Trace
from benchmarks.simulate.followed_load.arrivals import MONDAY, Day, Job
from benchmarks.simulate.followed_load.fleet import Fleet, Outcome, Strike, Worker, World
from benchmarks.simulate.followed_load.policies import ScaledJob
from diffuserve.jobs.policy.scaling import Floor, ScaleConfig

_POD_SECONDS = (1.0, 5.0)  # on a node that is there and has the image
_TOLERATED_SECONDS = 10.0
_QUICKLY = World().missed_seconds - 300.0 + _TOLERATED_SECONDS


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What real fleets measured, of which simulated ones are made."""

    step_seconds: float
    load_seconds: float


@dataclass(frozen=True, kw_only=True)
class FleetSettings:
    """Settings of the control plane and of the workers, in seconds."""

    target_seconds: float
    lease_seconds: float
    notice_seconds: float
    leave_seconds: float


def simulated(trace: Trace, measured: Measured, settings: FleetSettings, seed: int) -> dict[str, Course]:
    """Return the courses on Kubernetes as it is, and where pods leave an unreachable node soon."""
    world = World(
        node_seconds=_POD_SECONDS,
        load_seconds=measured.load_seconds,
        leave_seconds=settings.leave_seconds,
        lease_seconds=settings.lease_seconds,
        notice_seconds=settings.notice_seconds,
        first_workers=LEAST,
    )
    tolerant = replace(world, missed_seconds=_QUICKLY)
    names = {
        "Kubernetes with KEDA, simulated": world,
        f"Kubernetes, {_TOLERATED_SECONDS:.0f} s tolerated, simulated": tolerant,
    }
    return {name: _course(trace, measured, settings, each, seed) for name, each in names.items()}


def _course(trace: Trace, measured: Measured, settings: FleetSettings, world: World, seed: int) -> Course:
    jobs = [Job(MONDAY + job.second, job.steps * measured.step_seconds) for job in trace.jobs]
    strikes = [
        Strike(MONDAY + loss.second, loss.share, loss.kind is LossKind.NOTICE) for loss in trace.losses
    ]
    config = ScaleConfig(scale_target_seconds=settings.target_seconds)
    policy = ScaledJob(config, world.load_seconds, (Floor(workers=LEAST),), MOST)
    return course_of(Fleet(Day(tuple(jobs), {}), policy, world, seed, strikes).run())


def course_of(outcome: Outcome) -> Course:
    """Return what was seen of a simulated fleet, in seconds of its trace."""
    until = outcome.done_at - MONDAY
    dead = {id(worker): strike.at - MONDAY for strike, worker in outcome.strikes if not strike.has_notice}
    spans = [_Span.of(worker, dead.get(id(worker), math.inf), until) for worker in outcome.workers]
    return Course(
        seconds=until,
        waits=tuple(outcome.waits),
        num_lost=0,  # a fleet plays until every job is done
        num_redrawn=outcome.again,
        losses=tuple(_struck(strike, worker, spans, until) for strike, worker in outcome.strikes),
        ready=tuple(span.ready for span in spans if 0.0 < span.ready <= until),
        workers=_steps(spans, until),
        worker_seconds=sum(span.gone - span.ordered for span in spans),
    )


@dataclass(frozen=True)
class _Span:
    """Life of a worker within the trace, in its seconds: `ended` once it works no more, `gone` uncounted."""

    ordered: float
    ready: float
    ended: float
    gone: float

    @classmethod
    def of(cls, worker: Worker, died: float, until: float) -> "_Span":
        gone = min(math.inf if worker.gone_at is None else worker.gone_at - MONDAY, until)
        return cls(worker.ordered_at - MONDAY, worker.ready_at - MONDAY, min(died, gone), gone)


def _struck(strike: Strike, worker: Worker, spans: Sequence[_Span], until: float) -> Struck:
    at = strike.at - MONDAY
    num_ready = sum(span.ready < at <= span.ended for span in spans)
    kind = LossKind.NOTICE if strike.has_notice else LossKind.DEATH
    known = at if strike.has_notice else (worker.gone_at or math.inf) - MONDAY
    return Struck(at, kind, num_ready, known if known < until else None)


def _steps(spans: Sequence[_Span], until: float) -> tuple[tuple[float, int], ...]:
    """Return how many workers are ready from which second on."""
    changes = sorted({max(at, 0.0) for span in spans for at in (span.ready, span.ended) if at < until})
    return tuple((at, sum(span.ready <= at < span.ended for span in spans)) for at in changes)
