"""Tables of the metrics of the control plane and of workers."""

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import Metric
from prometheus_client.metrics import MetricWrapperBase

from diffuserve.telemetry.metrics import ControlMetrics, GpuSeries, WorkerSeries
from reference.markdown import code, prose, table

_HEADINGS = ("metric", "kind and labels", "meaning")


def regions() -> Mapping[str, str]:
    """Return a table for each kind of process."""
    gpus = [(gauge, gauge._labelnames) for gauge in GpuSeries(list).describe()]
    return {
        "control plane": table(_HEADINGS, [_row(*declared) for declared in _declared(ControlMetrics())]),
        "worker": table(_HEADINGS, [_row(*declared) for declared in (*_declared(WorkerSeries()), *gpus)]),
    }


def _declared(metrics: object) -> Iterator[tuple[Metric, Sequence[str]]]:
    """Yield each metric with the names of its labels, in the order of their declarations."""
    for metric in vars(metrics).values():
        if isinstance(metric, MetricWrapperBase):
            yield next(iter(metric.describe())), metric._labelnames


def _row(metric: Metric, labels: Sequence[str]) -> tuple[str, ...]:
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    by = f" by {', '.join(map(code, labels))}" if labels else ""
    return code(name), f"{metric.type}{by}", prose(metric.documentation)
