"""Spans of a worker's work on its jobs, recorded by its agent from the engine processes' messages."""

import time
from collections.abc import Iterable, Iterator, Mapping

from diffuserve.agent.state.held_job import HeldJob
from diffuserve.domain.jobs.job import Phase
from diffuserve.domain.trace_context import TraceContext
from diffuserve.domain.workers.worker import Lease
from diffuserve.protocol.messages import JobDenoised, JobFailed, JobFinished, StepTaken
from diffuserve.telemetry.tracing import (
    ATTEMPT,
    NUM_JOBS,
    OFF,
    STATUS,
    Span,
    SpanKind,
    Tracer,
    attributes_of,
)


class JobSpans:
    """Records each attempt at a job of a recorded trace, its phases, and steps that such jobs shared."""

    def __init__(self, tracer: Tracer = OFF) -> None:
        self._tracer = tracer

    def begin(self, lease: Lease) -> Span:
        """Begin the span of an attempt, the parent of all the worker's spans for it."""
        parent = TraceContext.parse(lease.traceparent)
        if parent is None:  # no trace starts here, as it would lack the job's submission
            return Span()
        attributes = {**attributes_of(lease), ATTEMPT: lease.attempt}
        return self._tracer.start("job.run", parent, attributes, kind=SpanKind.CONSUMER)

    def left_engine(self, job: HeldJob, message: JobFinished | JobDenoised | JobFailed) -> None:
        """Record an attempt's phases, once its engine has reported how long they took."""
        if not job.span.is_recorded:
            return
        if isinstance(message, JobFailed):
            job.span.fail(message.code)
            return
        now = time.time()
        since = now if job.entered_at is None else job.entered_at
        if job.load_seconds is not None:
            self._record(job, Phase.LOAD, since - job.load_seconds, since)
        for phase, begin, end in phases_of(
            message, since, now, is_decoded_only=job.lease.latents is not None
        ):
            self._record(job, phase, begin, end)

    def begin_upload(self, job: HeldJob) -> Span:
        """Begin the span of the upload and of the completion report."""
        if job.span.context is None:
            return Span()
        return self._tracer.start(_name(Phase.UPLOAD), job.span.context)

    def end(self, job: HeldJob, status: str) -> None:
        """End the span of an attempt with the job's new status."""
        job.span.set({STATUS: status})
        job.span.end()

    def step(self, step: StepTaken, jobs: Iterable[HeldJob]) -> None:
        """Record a denoising step as a trace of its own, with links to the attempts that shared it."""
        contexts = [job.span.context for job in jobs if job.span.is_recorded]
        links = [context for context in contexts if context is not None]
        if links:
            attributes = {NUM_JOBS: len(step.attempts)}
            span = self._tracer.start("engine.step", None, attributes, links=links, at=step.began_at)
            span.end(step.began_at + step.seconds)

    def _record(self, job: HeldJob, phase: Phase, begin: float, end: float) -> None:
        self._tracer.start(_name(phase), job.span.context, at=begin).end(end)


def phases_of(
    message: JobFinished | JobDenoised, since: float, now: float, *, is_decoded_only: bool
) -> Iterator[tuple[Phase, float, float]]:
    """Yield the phases, with start and end, of a job that entered its engine at `since` and left it `now`.

    Phases follow one another, and the engine reports the duration of each. A job that is only decoded here
    also has durations of earlier phases, which ran elsewhere.
    """
    if isinstance(message, JobDenoised):
        yield Phase.DENOISE, since, now
        return
    begin = since + (0.0 if is_decoded_only else message.timings.get("queue_seconds", 0.0))
    for phase, seconds in _seconds_of(message.timings, is_decoded_only).items():
        end = min(begin + seconds, now)
        yield phase, begin, end
        begin = end


def _seconds_of(timings: Mapping[str, float], is_decoded_only: bool) -> dict[Phase, float]:
    named = (Phase.ENCODE, Phase.DENOISE, Phase.DECODE, Phase.FILTER)
    here = [phase for phase in named if not (is_decoded_only and phase in (Phase.ENCODE, Phase.DENOISE))]
    return {phase: timings[f"{phase}_seconds"] for phase in here if f"{phase}_seconds" in timings}


def _name(phase: Phase) -> str:
    return f"job.{phase}"
