"""Spans of one process, recorded or not, and what reaches a collector."""

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.trace_context import TraceContext
from diffuserve.telemetry.tracer_choice import open_tracer
from diffuserve.telemetry.tracing import OFF, SpanKind, Tracer, current, enter
from diffuserve.telemetry.tracing_config import TracingConfig
from support.otlp_receiver import OtlpReceiver, otlp_receiver
from support.ports import free_port
from support.waiting import eventually

CLIENT = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", is_sampled=True)
UNSAMPLED = TraceContext(CLIENT.trace_id, CLIENT.span_id, is_sampled=False)


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as receiver:
        yield receiver


def sending_threads() -> set[threading.Thread]:
    """Return the threads that send spans, those of other tests too."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("Otel")}


async def test_a_span_arrives_with_its_place_and_its_attributes(receiver: OtlpReceiver) -> None:
    tracer = open_tracer(receiver.config(), "diffuserve-api")
    span = tracer.start("POST", CLIENT, {"a": 1}, kind=SpanKind.SERVER, at=5.0)
    span.rename("POST /v1/jobs")
    span.fail("oom")
    span.end(at=7.5)
    await tracer.close()
    (received,) = receiver.spans
    assert (received.service, received.name) == ("diffuserve-api", "POST /v1/jobs")
    assert (received.trace_id, received.parent_id) == (CLIENT.trace_id, CLIENT.span_id)
    assert span.context == TraceContext(CLIENT.trace_id, received.span_id, is_sampled=True)
    assert received.attributes == {"a": 1, "error.type": "oom"}
    assert (received.end - received.begin, received.is_failed) == (2_500_000_000, True)


async def test_a_trace_that_its_client_does_not_record_is_not_recorded_here(receiver: OtlpReceiver) -> None:
    tracer = open_tracer(receiver.config(), "s")
    span = tracer.start("GET", UNSAMPLED)
    assert (span.is_recorded, span.context) == (False, UNSAMPLED)
    span.end()
    await tracer.close()
    assert receiver.spans == []


async def test_a_share_of_the_traces_that_begin_here_is_recorded(receiver: OtlpReceiver) -> None:
    tracer = open_tracer(receiver.config(0.1), "s")
    spans = [tracer.start("POST", None) for _ in range(2_000)]
    recorded = [span for span in spans if span.is_recorded]
    for span in spans:
        assert span.context is not None
        assert span.context.is_sampled == span.is_recorded
        span.end()
    await tracer.close()
    assert 120 < len(recorded) < 280, "0.1 of 2,000, within six standard deviations"
    assert len(receiver.spans) == len(recorded)


async def test_what_links_to_a_recorded_span_is_recorded_whatever_the_ratio(receiver: OtlpReceiver) -> None:
    tracer = open_tracer(receiver.config(0.0), "s")
    tracer.start("step", None, links=[CLIENT]).end()
    tracer.start("step", None, links=[UNSAMPLED]).end()
    tracer.start("step", None).end()
    await tracer.close()
    (received,) = receiver.spans
    assert received.links == (CLIENT.span_id,)
    assert received.trace_id != CLIENT.trace_id


async def test_standard_variables_name_the_process(
    receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "pictures")
    tracer = open_tracer(receiver.config(), "diffuserve-api")
    tracer.start("POST", None).end()
    await tracer.close()
    assert [span.service for span in receiver.spans] == ["pictures"]


async def test_an_sdk_that_is_disabled_records_nothing(
    receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    tracer = open_tracer(receiver.config(), "s")
    span = tracer.start("POST", None)
    assert (span.context, span.is_recorded) == (None, False)
    await tracer.close()
    assert receiver.spans == []


async def test_a_collector_that_is_away_holds_nothing_up(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    before = sending_threads()
    tracer = open_tracer(
        TracingConfig(trace_endpoint=f"http://127.0.0.1:{free_port()}", trace_ratio=1.0), "s"
    )
    begin = time.monotonic()
    for _ in range(10_000):  # more than the queue holds
        tracer.start("POST", None).end()
    await tracer.close()
    assert time.monotonic() - begin < 60, "neither spans nor the end wait until the collector is back"
    await eventually(lambda: sending_threads() <= before)
    assert {record.name for record in caplog.records} <= {"diffuserve.telemetry.otlp_tracer"}


def test_without_an_endpoint_nothing_is_recorded_and_contexts_pass() -> None:
    tracer = open_tracer(TracingConfig(), "s")
    assert tracer is OFF
    assert type(tracer) is Tracer
    span = tracer.start("POST", CLIENT)
    assert (span.context, span.is_recorded) == (CLIENT, False)


def test_without_an_endpoint_nothing_of_opentelemetry_is_imported() -> None:
    program = """
import sys
from diffuserve.telemetry.tracer_choice import open_tracer
from diffuserve.telemetry.tracing_config import TracingConfig
open_tracer(TracingConfig(), "s")
print(*[name for name in sys.modules if name.startswith("opentelemetry")])
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout.split() == []


def test_a_missing_sdk_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "diffuserve.telemetry.otlp_tracer", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(InvalidParams, match=r"diffuserve\[tracing\]"):
        open_tracer(TracingConfig(trace_endpoint="http://127.0.0.1:1"), "s")


async def test_a_task_belongs_to_the_span_that_it_entered() -> None:
    enter(None)
    assert current() is None
    enter(CLIENT)
    assert current() == CLIENT
