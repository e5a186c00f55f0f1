"""What the dashboards show: panels by row, with queries, units and words, for `make_dashboards.py`.

Expressions take `max` of gauges that every control plane reports.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_RATE = "[$__rate_interval]"


@dataclass(frozen=True)
class Unit:
    """Grafana's name of a unit, and the least end of an axis: without it one of zeros alone ends at 100."""

    name: str
    axis_end: float | None = None
    decimals: int | None = None


COUNT = Unit("short", 1, decimals=0)
MEAN = Unit("short", 1)
DEVICES = Unit("short", 1)
MONEY = Unit("short")
RATE = Unit("suffix:/s", 0.1)
REQUESTS = Unit("reqps", 0.1)
DURATION = Unit("s")
WAIT = Unit("s", 1)
SHARE = Unit("percentunit", 1)
SMALL_SHARE = Unit("percentunit", 0.1)
PERCENT = Unit("percent", 100)


@dataclass(frozen=True)
class Panel:
    """A chart with a query for each name in its legend; `{{label}}` in a name stands for a label's value.

    `no_value` says why it may be empty.
    """

    title: str
    unit: Unit
    queries: dict[str, str]
    description: str = ""
    no_value: str = ""


@dataclass(frozen=True)
class Board:
    """A dashboard: its panels by row, and the names of variables that people choose.

    It opens with the last `hours`, and has a point at most every `interval`.
    """

    name: str
    title: str
    rows: dict[str, Sequence[Panel]]
    variables: Sequence[str] = ()
    hours: int = 1
    interval: str | None = None


def _quantiles(metric: str, labels: str = "") -> dict[str, str]:
    """Return queries of the median and of the 95th and 99th percentile of a histogram."""
    rate = f"sum by (le) (rate({metric}_bucket{labels}{_RATE}))"
    return {f"p{part}": f"histogram_quantile({part / 100}, {rate})" for part in (50, 95, 99)}


def _mean(metric: str, by: str = "") -> str:
    sums = [f"sum{by}(rate({metric}_{part}{_RATE}))" for part in ("sum", "count")]
    return " / ".join(sums)


def _rate(counter: str, by: str, labels: str = "") -> dict[str, str]:
    """Return a query of a counter's rate for each value of a label."""
    return {f"{{{{{by}}}}}": f"sum by ({by}) (rate({counter}{labels}{_RATE}))"}


def _of_jobs(status: str) -> str:
    return f"sum(rate(diffusion_requests_total{{status{status}}}{_RATE}))"


_WITHOUT_GPU = "No GPU reports: workers tell of theirs with diffuserve[gpu-metrics]"
_DEVICES = "Device-seconds per second: 1 is one device at work."
_QUEUE = "max by (pool, band) (diffusion_queue_size)"
_WORK = "max by (pool, band) (diffusion_queue_work_seconds)"
_OLDEST = "max by (pool, band) (diffusion_queue_oldest_seconds)"
_WORKERS = 'sum(max by (state, kind) (diffusion_workers{state=~"ready|occupied|draining|stalled"}))'
_USEFUL = f'sum(rate(diffusion_gpu_seconds_total{{outcome="useful"}}{_RATE}))'
_SUCCEEDED = _of_jobs('="succeeded"')
_MEMORY = "max by (instance, gpu_id) (gpu_memory_used_bytes / gpu_memory_total_bytes)"
_FAILED, _ENDED = _of_jobs('=~"failed|expired"'), _of_jobs('!="canceled"')
_ERRORS = f"({_FAILED} or vector(0)) / {_ENDED}"

OVERVIEW = Board(
    "overview",
    "Overview",
    {
        "What clients see": [
            Panel(
                "Jobs that ended",
                RATE,
                _rate("diffusion_requests_total", "status"),
            ),
            Panel(
                "Errors", SMALL_SHARE, {"failed or expired": _ERRORS}, "Target below 1 %, alert above 5 %."
            ),
            Panel(
                "From submission to result",
                DURATION,
                _quantiles("diffusion_job_duration_seconds", '{status="succeeded"}'),
                "Target: p99 below 30 s, alert above 60 s.",
            ),
            Panel(
                "Jobs accepted",
                RATE,
                _rate("diffusion_jobs_accepted_total", "model"),
            ),
        ],
        "Where the time goes": [
            Panel(
                "Ready jobs",
                COUNT,
                {"{{band}}": f"sum by (band) ({_QUEUE})"},
                "Target below 10 for each worker.",
            ),
            Panel("From submission to claim", DURATION, _quantiles("diffusion_job_queue_seconds")),
            Panel("From claim to the end", DURATION, _quantiles("diffusion_job_run_seconds")),
            Panel(
                "Mean seconds by phase",
                DURATION,
                {"{{phase}}": _mean("diffusion_phase_seconds", " by (phase) ")},
            ),
        ],
        "The control plane": [
            Panel("Duration of a claim", DURATION, _quantiles("diffusion_claim_seconds")),
            Panel(
                "HTTP responses",
                REQUESTS,
                _rate("diffusion_http_request_duration_seconds_count", "status"),
            ),
            Panel("Webhooks that wait", COUNT, {"webhooks": "max(diffusion_webhook_backlog)"}),
            Panel(
                "What must stay 0",
                COUNT,
                {
                    "published twice": "sum(diffusion_double_publishes_total)",
                    "bus disconnected": "sum(1 - diffusion_event_bus_connected)",
                },
            ),
        ],
    },
)

QUEUE = Board(
    "queue",
    "Queue and fairness",
    {
        "Waiting": [
            Panel("Ready jobs", COUNT, {"{{pool}} {{band}}": _QUEUE}),
            Panel(
                "Work that waits",
                WAIT,
                {"{{pool}} {{band}}": _WORK},
                "Predicted device-seconds of ready jobs.",
            ),
            Panel("Oldest ready job", WAIT, {"{{pool}} {{band}}": _OLDEST}),
            Panel("Time to drain", WAIT, {"with these workers": f"sum({_WORK}) / {_WORKERS}"}),
        ],
        "Fairness and retries": [
            Panel(
                "Fair-share error",
                SMALL_SHARE,
                {"error": "max(diffusion_fair_share_error)"},
                "Part of the device-seconds of tenants with ready jobs that went to others than is fair.",
            ),
            Panel(
                "Jobs put back",
                RATE,
                _rate("diffusion_jobs_requeued_total", "cause"),
            ),
            Panel(
                "Leases",
                RATE,
                {
                    "granted": f"sum(rate(diffusion_leases_granted_total{_RATE}))",
                    "expired": f"sum(rate(diffusion_leases_expired_total{_RATE}))",
                    "writes refused": f"sum(rate(diffusion_fenced_writes_total{_RATE}))",
                },
            ),
            Panel(
                "Checkpoints and preemption",
                RATE,
                {
                    "stored": f"sum(rate(diffusion_checkpoints_stored_total{_RATE}))",
                    "resumed": f"sum(rate(diffusion_checkpoints_resumed_total{_RATE}))",
                    "preempted": f"sum(rate(diffusion_jobs_preempted_total{_RATE}))",
                },
            ),
        ],
    },
)

WORKERS = Board(
    "workers",
    "Workers and GPUs",
    {
        "Workers": [
            Panel(
                "Workers",
                COUNT,
                {
                    "{{state}}": "sum by (state) (max by (state, kind) (diffusion_workers))",
                    "on spot": 'sum(max by (state, kind) (diffusion_workers{kind="spot",state!="lost"}))',
                },
            ),
            Panel("Running jobs", COUNT, {"leases": "max(diffusion_leases)"}),
            Panel(
                "Jobs that left workers",
                RATE,
                _rate("diffusion_worker_jobs_total", "status"),
            ),
            Panel(
                "Engines that died",
                COUNT,
                {"{{instance}}": "sum by (instance) (increase(diffusion_worker_engine_restarts_total[1h]))"},
            ),
        ],
        "Steps": [
            Panel(
                "Requests in a step",
                MEAN,
                {"{{instance}}": _mean("diffusion_batch_size", " by (instance) ")},
            ),
            Panel(
                "Tokens in a step",
                MEAN,
                {"{{instance}}": _mean("diffusion_step_tokens", " by (instance) ")},
            ),
            Panel("Seconds of a step", DURATION, _quantiles("diffusion_step_seconds")),
            Panel(
                "Models in memory", COUNT, {"{{model}}": "sum by (model) (diffusion_worker_model_resident)"}
            ),
        ],
        "GPUs": [
            Panel(
                "Utilization",
                PERCENT,
                {"{{instance}} {{gpu_id}}": "max by (instance, gpu_id) (gpu_utilization_percent)"},
                "Target 70 to 85 %. One request keeps a GPU as busy as a full batch.",
                _WITHOUT_GPU,
            ),
            Panel(
                "Memory",
                SHARE,
                {"{{instance}} {{gpu_id}}": _MEMORY},
                "Target below 90 %, alert above 95 %.",
                _WITHOUT_GPU,
            ),
        ],
    },
)

COST = Board(
    "cost",
    "Cost",
    {
        "Device-seconds": [
            Panel(
                "By outcome",
                DEVICES,
                _rate("diffusion_gpu_seconds_total", "outcome"),
                _DEVICES,
            ),
            Panel(
                "By model, useful",
                DEVICES,
                _rate("diffusion_gpu_seconds_total", "model", '{outcome="useful"}'),
                _DEVICES,
            ),
            Panel("Per job that succeeded", DURATION, {"useful device-seconds": f"{_USEFUL} / {_SUCCEEDED}"}),
            Panel("Useful share of workers' time", SHARE, {"share": f"{_USEFUL} / {_WORKERS}"}),
        ],
        "Money, at the price of one worker and hour that is chosen above": [
            Panel("All workers, per hour", MONEY, {"price": f"{_WORKERS} * $price"}),
            Panel(
                "1,000 jobs, with idle time",
                MONEY,
                {"price": f"1000 * {_WORKERS} * $price / 3600 / {_SUCCEEDED}"},
            ),
            Panel(
                "1,000 jobs, useful time alone",
                MONEY,
                {"price": f"1000 * {_USEFUL} * $price / 3600 / {_SUCCEEDED}"},
            ),
        ],
    },
    variables=("price",),
    hours=24,
    interval="1m",  # device-seconds count when jobs end: shorter intervals show lumps
)

MODEL = Board(
    "model",
    "One model",
    {
        "Jobs": [
            Panel(
                "Jobs that ended",
                RATE,
                _rate("diffusion_requests_total", "status", '{model="$model"}'),
            ),
            Panel(
                "p95 from claim to result, by steps",
                DURATION,
                {
                    "{{steps}} steps": "histogram_quantile(0.95, sum by (le, steps) (rate("
                    f'diffusion_generation_duration_seconds_bucket{{model="$model",job!~".*worker"}}{_RATE})))'
                },
            ),
            Panel("Ready jobs", COUNT, {"{{band}}": 'max by (band) (diffusion_queue_size{pool="$model"})'}),
            Panel(
                "Oldest ready job",
                WAIT,
                {"{{band}}": 'max by (band) (diffusion_queue_oldest_seconds{pool="$model"})'},
            ),
        ],
        "Work": [
            Panel(
                "Device-seconds by outcome",
                DEVICES,
                _rate("diffusion_gpu_seconds_total", "outcome", '{model="$model"}'),
                _DEVICES,
            ),
            Panel("Seconds of a step", DURATION, _quantiles("diffusion_step_seconds", '{model="$model"}')),
            Panel(
                "Workers that have it in memory",
                COUNT,
                {"workers": 'sum(diffusion_worker_model_resident{model="$model"})'},
            ),
            Panel(
                "Last load",
                DURATION,
                {"{{instance}}": 'max by (instance) (diffusion_worker_model_load_seconds{model="$model"})'},
            ),
        ],
    },
    variables=("model",),
)

BOARDS = (OVERVIEW, QUEUE, WORKERS, COST, MODEL)
