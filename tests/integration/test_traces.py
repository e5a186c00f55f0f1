"""A job's trace, from its client through the control plane and the worker, as it reaches a collector."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator

import httpx
import orjson
import pytest

from diffuserve.agent.agent import WorkerAgent
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.domain.trace_context import TraceContext
from diffuserve.telemetry.log_config import LogConfig, LogFormat
from diffuserve.telemetry.logs import configure_logs
from diffuserve.telemetry.tracer_choice import open_tracer
from diffuserve.telemetry.tracing import Tracer
from support.log_state import restored_logging
from support.otlp_receiver import OtlpReceiver, ReceivedSpan, otlp_receiver
from support.plane import Plane
from support.waiting import eventually

Start = Callable[..., WorkerAgent]
TracerOf = Callable[[str], Tracer]
RunTraced = Callable[..., Awaitable[tuple[dict[str, object], list[ReceivedSpan]]]]
CLIENT = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", is_sampled=True)
UNRECORDED = TraceContext("5bf92f3577b34da6a3ce929d0e0e4736", "10f067aa0ba902b7", is_sampled=False)
SERVER, CONSUMER = 2, 5  # kinds of spans, as OTLP numbers them
PREFIX = "diffuserve."


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as receiver:
        yield receiver


@pytest.fixture
def ratio() -> float:
    return 0.0


@pytest.fixture
async def tracer_of(receiver: OtlpReceiver, ratio: float) -> AsyncGenerator[TracerOf]:
    tracers: dict[str, Tracer] = {}

    def tracer_of(service: str) -> Tracer:
        if service not in tracers:
            tracers[service] = open_tracer(receiver.config(ratio), service)
        return tracers[service]

    yield tracer_of
    for tracer in tracers.values():
        await tracer.close()


async def run_job(plane: Plane, client: TraceContext | None, prompt: str = "a star") -> dict[str, object]:
    """Submit a job as a client does, within its span if it has one, and return the job once it is final."""
    body = {"model": "null", "input": {"prompt": prompt, "seed": 1}}
    headers = {} if client is None else {"traceparent": str(client)}
    async with httpx.AsyncClient(base_url=plane.url, timeout=180) as http:
        await eventually(lambda: _is_served(http))
        job = (await http.post("/v1/jobs", json=body, headers=headers)).raise_for_status().json()
        while not JobStatus(job["status"]).is_final:
            job = (await http.get(f"/v1/jobs/{job['id']}?wait=5")).raise_for_status().json()
    return dict(job)


async def _is_served(http: httpx.AsyncClient) -> bool:
    models = (await http.get("/v1/models")).json()["data"]
    return any(model["id"] == "null" for model in models)


async def ended(agent: WorkerAgent) -> None:
    """Wait until the worker has no job any more, so that the spans of its attempts have ended."""
    await eventually(lambda: not agent.held)


@pytest.fixture
def run_traced(plane: Plane, start: Start, receiver: OtlpReceiver, tracer_of: TracerOf) -> RunTraced:
    """Runs a job on a null engine with these options; returns it, and the spans of both services."""

    async def run_traced(
        client: TraceContext | None, *options: str, prompt: str = "a star"
    ) -> tuple[dict[str, object], list[ReceivedSpan]]:
        agent = start(*options)
        job = await run_job(plane, client, prompt)
        await ended(agent)
        await tracer_of("diffuserve-worker").close()
        await tracer_of("diffuserve-api").close()
        return job, receiver.spans

    return run_traced


async def test_a_client_s_trace_holds_its_job_from_submission_to_upload(
    run_traced: RunTraced, receiver: OtlpReceiver
) -> None:
    job, spans = await run_traced(CLIENT, "--files", "1", "--seconds", "0.05")
    assert job["trace_id"] == CLIENT.trace_id
    (submitted,), (queued,), (run,) = map(receiver.named, ("POST /v1/jobs", "job.queue", "job.run"))
    (denoised,), (uploaded,) = map(receiver.named, ("job.denoise", "job.upload"))
    (step,) = receiver.named("engine.step")
    assert (submitted.service, submitted.kind, submitted.parent_id) == (
        "diffuserve-api",
        SERVER,
        CLIENT.span_id,
    )
    assert submitted.attributes["http.response.status_code"] == 202
    assert (queued.service, queued.parent_id) == ("diffuserve-api", submitted.span_id)
    assert (run.service, run.kind, run.parent_id) == ("diffuserve-worker", CONSUMER, submitted.span_id)
    names = {name.removeprefix(PREFIX): value for name, value in run.attributes.items()}
    assert names == {
        "job.id": job["id"],
        "tenant": "default",
        "model": "null",
        "attempt": 1,
        "worker.id": job["worker_id"],
        "status": "succeeded",
    }
    assert {denoised.parent_id, uploaded.parent_id} == {run.span_id}
    assert submitted.begin <= queued.begin <= queued.end <= run.end
    assert run.begin <= denoised.begin < denoised.end <= uploaded.end <= run.end
    requests = [span for span in spans if span.parent_id == uploaded.span_id]
    assert {(span.service, span.kind) for span in requests} == {("diffuserve-api", SERVER)}
    assert any("complete" in span.name for span in requests), [span.name for span in requests]
    assert {span.trace_id for span in spans if span is not step} == {CLIENT.trace_id}
    assert step.links == (run.span_id,)
    assert step.trace_id != CLIENT.trace_id


async def test_no_key_prompt_or_url_is_sent(run_traced: RunTraced, receiver: OtlpReceiver) -> None:
    await run_traced(CLIENT, "--files", "1", prompt="a secret star")
    assert receiver.spans
    assert not any(b"secret star" in body or b"token=" in body for body in receiver.bodies)


async def test_each_attempt_has_a_span_and_a_failed_one_says_why(
    run_traced: RunTraced, receiver: OtlpReceiver
) -> None:
    job, _ = await run_traced(CLIENT, prompt="fail")
    assert job["status"] == "failed"
    runs = receiver.named("job.run")
    assert [run.attributes["diffuserve.attempt"] for run in runs] == list(range(1, len(runs) + 1))
    assert len(runs) > 1
    assert all(run.is_failed and run.attributes["error.type"] == "fail" for run in runs)
    assert len(receiver.named("job.queue")) == 1


@pytest.mark.parametrize("ratio", [1.0])
async def test_a_trace_that_the_client_does_not_record_is_not_recorded(run_traced: RunTraced) -> None:
    job, spans = await run_traced(UNRECORDED)
    assert job["trace_id"] == UNRECORDED.trace_id
    assert UNRECORDED.trace_id not in {span.trace_id for span in spans}


@pytest.mark.parametrize("ratio", [1.0])
async def test_a_job_without_a_client_s_trace_begins_one_and_polls_none(
    run_traced: RunTraced, receiver: OtlpReceiver
) -> None:
    job, spans = await run_traced(None)
    (run,) = receiver.named("job.run")
    assert run.trace_id == job["trace_id"]
    roots = [span.name for span in spans if not span.parent_id]
    assert sorted(roots) == ["POST /v1/jobs", "engine.step"]


async def test_lines_about_a_job_name_it_its_tenant_its_worker_and_its_trace(
    plane: Plane, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    with restored_logging():
        configure_logs(LogConfig(log_format=LogFormat.JSON))
        agent = start()
        job = await run_job(plane, CLIENT, prompt="bad")
        await ended(agent)
    lines = [orjson.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    names = {
        "job_id": job["id"],
        "tenant": "default",
        "worker_id": job["worker_id"],
        "trace_id": CLIENT.trace_id,
    }
    about = [line for line in lines if job["id"] in line["event"] or line.get("job_id") == job["id"]]
    assert {line["logger"].split(".")[1] for line in about} == {"api", "agent"}
    for line in about:
        assert names.items() <= line.items(), line
