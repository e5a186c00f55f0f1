"""A collector of OpenTelemetry: a real server that takes spans by OTLP over HTTP, and keeps them."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from diffuserve.telemetry.tracing_config import TracingConfig


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it arrived; ids are in hex, `links` are the ids of spans, and times are nanoseconds."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    begin: int
    end: int
    is_failed: bool
    attributes: dict[str, Any]
    links: tuple[str, ...]


@dataclass
class OtlpReceiver:
    """Spans that have arrived, and the raw bodies that they were in."""

    url: str = ""
    spans: list[ReceivedSpan] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    def config(self, ratio: float = 1.0) -> TracingConfig:
        """Return the configuration of a process that sends its traces here."""
        return TracingConfig(trace_endpoint=self.url, trace_ratio=ratio)

    def named(self, name: str) -> list[ReceivedSpan]:
        """Return the spans of this name."""
        return [span for span in self.spans if span.name == name]

    def take(self, body: bytes) -> None:
        """Keep the spans of a request."""
        self.bodies.append(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = _values(resource.resource.attributes)["service.name"]
            self.spans += [_received(service, span) for scope in resource.scope_spans for span in scope.spans]


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    """Receive spans on loopback within the block."""
    received = OtlpReceiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.take(gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body)
            self.send_response(200 if self.path == "/v1/traces" else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    received.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield received
    finally:
        server.shutdown()
        server.server_close()


def _received(service: str, span: Any) -> ReceivedSpan:
    return ReceivedSpan(
        service=service,
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        kind=span.kind,
        begin=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        is_failed=span.status.code == span.status.STATUS_CODE_ERROR,
        attributes=_values(span.attributes),
        links=tuple(link.span_id.hex() for link in span.links),
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
