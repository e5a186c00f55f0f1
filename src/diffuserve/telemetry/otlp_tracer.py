"""Spans recorded with OpenTelemetry's SDK, and sent to a collector by OTLP over HTTP.

A thread sends them in batches from a queue of bounded length. Whatever becomes of the collector, a span that
ends is put into the queue or dropped, at once.
"""

import asyncio
import logging
import threading
from collections.abc import Sequence

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_ON,
    ParentBased,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.util.types import Attributes as OtelAttributes

from diffuserve.domain.trace_context import TraceContext
from diffuserve.telemetry.log_fields import once_a_minute
from diffuserve.telemetry.tracing import ERROR_TYPE, Attributes, Span, SpanKind, Tracer
from diffuserve.version import __version__

log = logging.getLogger(__name__)

_PATH = "/v1/traces"
_CLOSE_SECONDS = 3.0
_NANOSECONDS = 1_000_000_000
_KINDS = {kind: trace.SpanKind[kind.name] for kind in SpanKind}


class OtlpTracer(Tracer):
    """Records spans and sends them to the collector at `endpoint`.

    Variables of the environment that OpenTelemetry defines say the rest: headers, certificates, compression,
    timeouts, limits, and more about the process (`OTEL_RESOURCE_ATTRIBUTES`).
    """

    def __init__(self, endpoint: str, ratio: float, service: str) -> None:
        # What the SDK logs may quote the endpoint; `_LoggedExporter` logs what matters.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        url = endpoint.rstrip("/").removesuffix(_PATH) + _PATH
        self._provider = TracerProvider(
            sampler=ParentBased(_LinkedOrBy(TraceIdRatioBased(ratio))),
            resource=_resource(service),
            shutdown_on_exit=False,
        )
        self._exporter = _LoggedExporter(OTLPSpanExporter(endpoint=url))
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("diffuserve", __version__)

    def start(
        self,
        name: str,
        parent: TraceContext | None,
        attributes: Attributes | None = None,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        links: Sequence[TraceContext] = (),
        at: float | None = None,
    ) -> Span:
        if parent is not None and not parent.is_sampled:
            return Span(parent)  # the SDK's decision at a tenth of its cost
        span = self._tracer.start_span(
            name,
            # Never the SDK's own current span: contexts are ours, and a span without a parent has none.
            context=Context() if parent is None else _context(parent),
            kind=_KINDS[kind],
            attributes=attributes,
            links=[trace.Link(_span_context(link)) for link in links],
            start_time=_nanoseconds(at),
        )
        return _OtelSpan(span)

    def begins_traces(self) -> bool:
        return True

    async def close(self) -> None:
        """Send what was recorded. A collector that does not answer delays the end by three seconds."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, _CLOSE_SECONDS)
        self._exporter.shutdown()  # the sending thread tries no more


class _OtelSpan(Span):
    def __init__(self, span: trace.Span) -> None:
        super().__init__(_trace_context(span.get_span_context()))
        self._span = span

    @property
    def is_recorded(self) -> bool:
        return self._span.is_recording()

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def set(self, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)

    def fail(self, kind: str) -> None:
        self._span.set_status(trace.StatusCode.ERROR)
        self._span.set_attribute(ERROR_TYPE, kind)

    def end(self, at: float | None = None) -> None:
        self._span.end(_nanoseconds(at))


class _LinkedOrBy(Sampler):
    """Records what links to a span that is recorded, and of the rest what another sampler chooses."""

    def __init__(self, otherwise: Sampler) -> None:
        self._otherwise = otherwise

    def should_sample(  # noqa: PLR0913 (the SDK's interface)
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: trace.SpanKind | None = None,
        attributes: OtelAttributes = None,
        links: Sequence[trace.Link] | None = None,
        trace_state: trace.TraceState | None = None,
    ) -> SamplingResult:
        is_linked = any(link.context.trace_flags.sampled for link in links or ())
        sampler = ALWAYS_ON if is_linked else self._otherwise
        return sampler.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)

    def get_description(self) -> str:
        return f"LinkedOrBy{{{self._otherwise.get_description()}}}"


class _LoggedExporter(SpanExporter):
    """Tells in the log, once a minute, that spans are lost."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result is not SpanExportResult.SUCCESS:
            log.warning("the collector of traces took no spans; they are lost", extra=once_a_minute())
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def _resource(service: str) -> Resource:
    own = Resource({"service.name": service, "service.version": __version__})
    return Resource.create().merge(own).merge(OTELResourceDetector().detect())


def _context(parent: TraceContext) -> Context:
    return trace.set_span_in_context(trace.NonRecordingSpan(_span_context(parent)), Context())


def _span_context(context: TraceContext) -> trace.SpanContext:
    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED if context.is_sampled else trace.TraceFlags.DEFAULT)
    return trace.SpanContext(int(context.trace_id, 16), int(context.span_id, 16), True, flags)


def _trace_context(context: trace.SpanContext) -> TraceContext | None:
    """Return the place of a span; `None` for one of an SDK that is disabled."""
    if not context.is_valid:
        return None
    trace_id, span_id = trace.format_trace_id(context.trace_id), trace.format_span_id(context.span_id)
    return TraceContext(trace_id, span_id, context.trace_flags.sampled)


def _nanoseconds(at: float | None) -> int | None:
    return None if at is None else int(at * _NANOSECONDS)
