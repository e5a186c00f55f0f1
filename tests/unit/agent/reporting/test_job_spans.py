"""Spans of attempts, their phases, and the steps that they shared."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from diffuserve.agent.reporting.job_spans import JobSpans, phases_of
from diffuserve.agent.state.held_job import HeldJob
from diffuserve.domain.trace_context import TraceContext
from diffuserve.protocol.messages import JobDenoised, JobFinished, StepTaken
from diffuserve.telemetry.tracer_choice import open_tracer
from diffuserve.telemetry.tracing import Tracer
from support.otlp_receiver import OtlpReceiver, otlp_receiver
from support.worker_fakes import make_lease

CLIENT = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", is_sampled=True)
TIMINGS = {"queue_seconds": 1.0, "encode_seconds": 2.0, "denoise_seconds": 4.0, "decode_seconds": 1.0}


def finished(**timings: float) -> JobFinished:
    return JobFinished(attempt="j1-1", timings=timings)


def test_phases_follow_one_another_after_the_wait_for_a_step() -> None:
    phases = list(phases_of(finished(**TIMINGS), 100.0, 110.0, is_decoded_only=False))
    assert phases == [("encode", 101.0, 103.0), ("denoise", 103.0, 107.0), ("decode", 107.0, 108.0)]


def test_no_phase_ends_after_its_job_left_the_engine() -> None:
    phases = list(phases_of(finished(**TIMINGS), 100.0, 106.5, is_decoded_only=False))
    assert [end for _phase, _begin, end in phases] == [103.0, 106.5, 106.5]


def test_a_job_that_is_only_decoded_here_has_no_earlier_phases() -> None:
    message = finished(**TIMINGS, filter_seconds=0.5)
    phases = list(phases_of(message, 100.0, 110.0, is_decoded_only=True))
    assert phases == [("decode", 100.0, 101.0), ("filter", 101.0, 101.5)]


def test_a_job_that_is_decoded_elsewhere_was_denoised_all_the_time() -> None:
    message = JobDenoised(attempt="j1-1", path="", weights="")
    assert list(phases_of(message, 100.0, 110.0, is_decoded_only=False)) == [("denoise", 100.0, 110.0)]


class Tracing:
    """A tracer, and the collector that has its spans once it is closed."""

    def __init__(self, receiver: OtlpReceiver) -> None:
        self.receiver = receiver
        self.tracer: Tracer = open_tracer(receiver.config(ratio=0.0), "w")
        self.spans = JobSpans(self.tracer)

    def held(self, job_id: str, trace: TraceContext | None) -> HeldJob:
        lease = make_lease(job_id, traceparent=None if trace is None else str(trace))
        return HeldJob(lease, Path(job_id), span=self.spans.begin(lease))


@pytest.fixture
async def tracing() -> AsyncGenerator[Tracing]:
    with otlp_receiver() as receiver:
        tracing = Tracing(receiver)
        yield tracing
        await tracing.tracer.close()


async def test_a_shared_step_links_to_the_traced_attempts_and_counts_all(tracing: Tracing) -> None:
    jobs = [tracing.held("j1", CLIENT), tracing.held("j2", CLIENT), tracing.held("j3", None)]
    step = StepTaken(attempts=("j1-1", "j2-1", "j3-1", "gone-1"), began_at=50.0, seconds=0.25)
    tracing.spans.step(step, jobs)
    for job in jobs:
        tracing.spans.end(job, "succeeded")
    await tracing.tracer.close()
    runs, (shared,) = tracing.receiver.named("job.run"), tracing.receiver.named("engine.step")
    assert [run.trace_id for run in runs] == [CLIENT.trace_id] * 2
    assert shared.links == tuple(run.span_id for run in runs)
    assert shared.trace_id != CLIENT.trace_id
    assert (shared.end - shared.begin, shared.attributes["diffuserve.num_jobs"]) == (250_000_000, 4)


async def test_a_step_without_traced_attempts_is_no_span(tracing: Tracing) -> None:
    step = StepTaken(attempts=("j1-1",), began_at=50.0, seconds=0.25)
    tracing.spans.step(step, [tracing.held("j1", None)])
    await tracing.tracer.close()
    assert tracing.receiver.spans == []


async def test_a_load_and_the_phases_are_spans_of_the_attempt(tracing: Tracing) -> None:
    job = tracing.held("j1", CLIENT)
    job.entered_at, job.load_seconds = 100.0, 3.0
    tracing.spans.left_engine(job, finished(**TIMINGS))
    tracing.spans.end(job, "succeeded")
    await tracing.tracer.close()
    (run,) = tracing.receiver.named("job.run")
    phases = [span for span in tracing.receiver.spans if span.parent_id == run.span_id]
    assert [span.name for span in phases] == ["job.load", "job.encode", "job.denoise", "job.decode"]
    assert phases[0].end == phases[1].begin - 1_000_000_000 == 100_000_000_000
    assert phases[0].end - phases[0].begin == 3_000_000_000
