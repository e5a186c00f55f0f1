"""CPU that traces cost: of a job's spans alone, and of a server with and without them.

    python -m benchmarks tracing                  # about five minutes
    python -m benchmarks tracing --only spans     # the spans alone; seconds

`spans`: the spans that a job has in a control plane and in its worker, made in one process and sent to a
collector on loopback, in turn at each share of recorded traces. `jobs`: jobs from submission to success over
HTTP on PostgreSQL with a null engine, CPU by process, rounds in turn. Results go to `benchmarks/results/` as
JSON and as tables. Nothing else should run on the machine.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import Event, Pipe, Process, synchronize
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.control.database import POSTGRESQL, open_database
from benchmarks.control.jobs import Load, measure_jobs
from benchmarks.control.processes import adopt_orphans
from benchmarks.shared.places import RESULTS
from benchmarks.shared.report import markdown_table, read_conditions, write_report
from diffuserve.domain.trace_context import TraceContext
from diffuserve.telemetry.tracer_choice import open_tracer
from diffuserve.telemetry.tracing import JOB_ID, MODEL, OFF, TENANT, SpanKind, Tracer
from diffuserve.telemetry.tracing_config import TracingConfig
from support.otlp_receiver import otlp_receiver

RATIOS = {"off": None, "1 %": 0.01, "all": 1.0}
JOBS_PER_SECOND = 300  # at which the share of a core is told
_PACKAGES = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http")
_NUM_TRACED = 5_000  # a round of `spans`
_PAUSE_EVERY, _PAUSE_SECONDS = 100, 0.05  # so that the queue of the sender, of 2,048 spans, never overflows
_ATTRIBUTES = {JOB_ID: "job_0123456789abcdef", TENANT: "ada", MODEL: "null"}
_PHASES = ("job.encode", "job.denoise", "job.decode")


@dataclass(frozen=True, kw_only=True)
class SpanFigures:
    """CPU microseconds of all spans of a job, the sending included."""

    traces: str
    cpu_us: float
    core_share: float


@dataclass(frozen=True, kw_only=True)
class ServerFigures:
    """Medians over the rounds: jobs per second, and CPU milliseconds per job by process."""

    traces: str
    jobs_per_second: float
    cpu_ms: Mapping[str, float]


def main() -> None:
    adopt_orphans()
    arguments = parse_arguments()
    with collector() as url:
        spans = measure_spans(url, arguments.rounds)
        jobs = [] if arguments.only == "spans" else measure_servers(url, arguments)
    text = tables(spans, jobs)
    print(text)
    if arguments.only is None:
        content = {"spans": [asdict(row) for row in spans], "jobs": [asdict(row) for row in jobs]}
        stem = RESULTS / f"tracing_{arguments.label}"
        write_report(stem, content, f"# What traces cost\n\n{text}", read_conditions(_PACKAGES))


@contextmanager
def collector() -> Iterator[str]:
    """Run a collector in a process of its own, and yield its address."""
    ours, theirs = Pipe()
    is_over = Event()
    process = Process(target=_collect, args=(theirs, is_over), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        is_over.set()
        process.join()


def _collect(told: Connection, is_over: synchronize.Event) -> None:
    with otlp_receiver() as receiver:
        told.send(receiver.url)
        is_over.wait()


def tracer_of(url: str, ratio: float | None) -> Tracer:
    if ratio is None:
        return OFF
    return open_tracer(TracingConfig(trace_endpoint=url, trace_ratio=ratio), "bench")


def measure_spans(url: str, rounds: int) -> list[SpanFigures]:
    """Measure each share of recorded traces in turn, and keep the medians."""
    taken: dict[str, list[float]] = {name: [] for name in RATIOS}
    for _ in range(rounds):
        for name, ratio in RATIOS.items():
            taken[name].append(asyncio.run(_cpu_per_job(tracer_of(url, ratio))))
    medians = {name: statistics.median(seconds) for name, seconds in taken.items()}
    return [
        SpanFigures(traces=name, cpu_us=1e6 * seconds, core_share=JOBS_PER_SECOND * seconds)
        for name, seconds in medians.items()
    ]


async def _cpu_per_job(tracer: Tracer) -> float:
    started = time.process_time()
    for number in range(_NUM_TRACED):
        trace_job(tracer)
        if number % _PAUSE_EVERY == 0:
            await asyncio.sleep(_PAUSE_SECONDS)
    await tracer.close()
    return (time.process_time() - started) / _NUM_TRACED


def trace_job(tracer: Tracer) -> None:
    """Make the spans of one job: its submission, queueing, attempt, phases, upload, and its completion."""
    submission = tracer.start("POST", None, kind=SpanKind.SERVER)
    stored = None if submission.context is None else str(submission.context)
    submission.end()
    parent = TraceContext.parse(stored)
    if parent is None:
        return
    tracer.start("job.queue", parent, _ATTRIBUTES, at=time.time()).end()
    run = tracer.start("job.run", parent, _ATTRIBUTES, kind=SpanKind.CONSUMER)
    for name in _PHASES:
        tracer.start(name, run.context, at=time.time()).end()
    upload = tracer.start("job.upload", run.context)
    tracer.start("POST", TraceContext.parse(str(upload.context)), kind=SpanKind.SERVER).end()
    upload.end()
    run.end()


def measure_servers(url: str, arguments: argparse.Namespace) -> list[ServerFigures]:
    """Measure a server at each share of recorded traces in turn, and keep the medians."""
    load = Load(arguments.num_jobs, num_connections=32)
    taken: dict[str, list[tuple[float, Mapping[str, float]]]] = {name: [] for name in RATIOS}
    for number in range(arguments.rounds):
        for name, ratio in RATIOS.items():
            print(f"round {number + 1} of {arguments.rounds}: traces {name}", flush=True)
            settings = {}
            if ratio is not None:
                settings = {"DIFFUSERVE_TRACE_ENDPOINT": url, "DIFFUSERVE_TRACE_RATIO": str(ratio)}
            taken[name].append(_one_server(load, settings))
    return [_median(name, figures) for name, figures in taken.items()]


def _one_server(load: Load, settings: Mapping[str, str]) -> tuple[float, Mapping[str, float]]:
    folder = Path(tempfile.mkdtemp(prefix="diffuserve-bench-tracing-"))
    folder.chmod(0o755)  # PostgreSQL runs as a user of its own where we are root
    with open_database(POSTGRESQL, folder) as database:
        figures = asyncio.run(measure_jobs(database, folder, load, num_agents=1, settings=settings))
    return figures.jobs_per_second, figures.cpu_ms


def _median(name: str, taken: list[tuple[float, Mapping[str, float]]]) -> ServerFigures:
    rates, spent = zip(*taken, strict=True)
    cpu_ms = {part: statistics.median(each[part] for each in spent) for part in ("server", "agents")}
    return ServerFigures(traces=name, jobs_per_second=statistics.median(rates), cpu_ms=cpu_ms)


def tables(spans: list[SpanFigures], jobs: list[ServerFigures]) -> str:
    sections = [
        markdown_table(
            "The eight spans of a job, server and worker together (aim: 3 % of a core at 1 %)",
            [_span_row(row) for row in spans],
        ),
        markdown_table(
            "Jobs over HTTP on PostgreSQL, a null engine, medians of rounds in turn",
            [_server_row(row) for row in jobs],
        ),
    ]
    return "\n\n".join(section for section in sections if section)


def _span_row(row: SpanFigures) -> dict[str, str]:
    share = f"{100 * row.core_share:.1f} %"
    return {
        "traces": row.traces,
        "CPU µs/job": f"{row.cpu_us:.0f}",
        f"core at {JOBS_PER_SECOND} jobs/s": share,
    }


def _server_row(row: ServerFigures) -> dict[str, str]:
    spent = {f"{part}, CPU ms/job": f"{value:.2f}" for part, value in row.cpu_ms.items()}
    return {"traces": row.traces, "jobs/s": f"{row.jobs_per_second:.0f}", **spent}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=["spans"], help="this part alone; writes no result file")
    parser.add_argument("--num-jobs", type=int, default=3_000, help="of a round (default 3000)")
    parser.add_argument("--rounds", type=int, default=5, help="of each (default 5)")
    parser.add_argument("--label", default="cpu", help="names the machine in the result's file name")
    return parser.parse_args()


if __name__ == "__main__":
    main()
