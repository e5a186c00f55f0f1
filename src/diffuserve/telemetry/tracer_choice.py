"""The tracer of a process, by its configuration. It imports OpenTelemetry only where spans are recorded."""

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.extras import Extra
from diffuserve.telemetry.tracing import OFF, Tracer
from diffuserve.telemetry.tracing_config import TracingConfig


def open_tracer(config: TracingConfig, service: str) -> Tracer:
    """Return the tracer of a process that is called `service` in traces.

    Raise `InvalidParams` if there is somewhere to send traces to, and OpenTelemetry's SDK is missing.
    """
    if config.trace_endpoint is None:
        return OFF
    try:
        from diffuserve.telemetry.otlp_tracer import OtlpTracer
    except ModuleNotFoundError as error:
        remedy = f"{error.name} is missing; install what traces need with `{Extra.TRACING.remedy}`"
        raise InvalidParams("trace_endpoint", config.trace_endpoint, remedy) from error
    return OtlpTracer(config.trace_endpoint, config.trace_ratio, service)
