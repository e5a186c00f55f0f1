"""Configuration of traces, the same for control planes and workers."""

from dataclasses import dataclass

from diffuserve.options import option


@dataclass(frozen=True, kw_only=True)
class TracingConfig:
    """Names where traces are sent, and how many. Standard `OTEL_*` variables say how they are sent."""

    trace_endpoint: str | None = option(
        None,
        "URL of an OpenTelemetry collector that gets traces by OTLP over HTTP: http://localhost:4318.",
    )
    trace_ratio: float = option(
        0.01,
        "Share of the traces that are recorded; those that clients began are if the client records them.",
        ge=0,
        le=1,
    )
