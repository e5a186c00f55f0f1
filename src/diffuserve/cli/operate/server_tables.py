"""Tables of a server's workers and running jobs."""

from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from diffuserve.cli.display.sizes import human_bytes
from diffuserve.cli.operate.server_view import ServerView, count_states
from diffuserve.domain.jobs.job import Phase
from diffuserve.domain.resources.job import JobResource
from diffuserve.domain.resources.worker import WorkerResource
from diffuserve.domain.text.timestamps import from_rfc3339
from diffuserve.domain.workers.worker import WorkerState

_BAR = 10  # characters
_SHRINKING = ("worker", "state", "models", "prompt")  # on a narrow screen
_COLORS = {WorkerState.LOST: "red", WorkerState.STALLED: "red", WorkerState.DRAINING: "yellow"}


def view_of(view: ServerView) -> RenderableType:
    """Return everything that is known of a server, a line of totals first."""
    parts: list[RenderableType] = [Text(totals(view), style="bold")]
    if view.workers is not None:
        parts += [Text(), workers_table(view)]
    if view.jobs:
        parts += [Text(), jobs_table(view)]
    return Group(*parts)


def totals(view: ServerView) -> str:
    """Describe a server in one line."""
    parts = [view.server, f"models: {', '.join(view.models) or 'none'}"]
    if view.workers is not None:
        states = ", ".join(f"{count} {state}" for state, count in count_states(view.workers).items())
        parts.append(f"workers: {states or 'none'}")
    parts.append(f"running: {len(view.jobs)}")
    if view.queue is not None:
        bands = ", ".join(f"{count} {band}" for band, count in view.queue.items() if count)
        seconds = f" ({bands}; {view.queue_seconds or 0.0:.1f} device-seconds)" if bands else ""
        parts.append(f"queued: {sum(view.queue.values())}{seconds}")
    parts.append(f"{view.jobs_per_minute:.1f} jobs/min")
    return " · ".join(parts)


def workers_table(view: ServerView) -> Table:
    """Return a row for each worker."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("worker", "state", "role", "jobs", "models", "device", "memory", "step", "heartbeat"):
        justify: JustifyMethod = "right" if name in ("jobs", "step") else "left"
        table.add_column(name, no_wrap=name not in _SHRINKING, overflow="fold", justify=justify)
    for worker in view.workers or ():
        heartbeat = f"{_age(view.now, worker.heartbeat_at)} ago"
        table.add_row(
            worker.name or worker.id,
            Text(state_of(worker), style=_COLORS.get(worker.state, "green")),
            str(worker.role),
            str(worker.num_leases),
            models_of(worker),
            _device(worker),
            _memory(worker),
            _milliseconds(worker.report.last_step_seconds),
            heartbeat,
        )
    return table


def jobs_table(view: ServerView) -> Table:
    """Return a row for each running job, with its progress by the worker's last heartbeat."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("job", "model", "progress", "running", "prompt"):
        table.add_column(name, no_wrap=name not in _SHRINKING, overflow="fold")
    for job in view.jobs:
        age = _age(view.now, job.started_at) if job.started_at else ""
        table.add_row(job.id, job.model, _progress(job), age, _line(job.final_prompt))
    return table


def _progress(job: JobResource) -> str:
    done = round(_BAR * min(max(job.progress.fraction, 0.0), 1.0))
    is_denoising = job.phase is Phase.DENOISE and job.progress.total
    step = f"{job.progress.step}/{job.progress.total}" if is_denoising else f"{job.phase or job.status}"
    return f"{'█' * done}{'░' * (_BAR - done)} {step}"


def models_of(worker: WorkerResource) -> str:
    """Name the models of a worker; of several, those that are not in memory in parentheses."""
    resident = worker.report.resident_models if len(worker.models) > 1 else worker.models
    return ", ".join(model if model in resident else f"({model})" for model in worker.models)


def state_of(worker: WorkerResource) -> str:
    """Describe the state of a worker; a drain that it has not heard of yet counts, and one has its reason."""
    is_told = worker.is_draining and worker.state is not WorkerState.LOST
    state, reason = WorkerState.DRAINING if is_told else worker.state, worker.report.drain_reason
    return f"{state}: {reason}" if reason and state is WorkerState.DRAINING else f"{state}"


def _device(worker: WorkerResource) -> str:
    report = worker.report
    if not report.num_gpus:
        return f"{report.num_cpus} CPU"
    return f"{report.num_gpus} × {report.device_name}" if report.device_name else f"{report.num_gpus} GPU"


def _memory(worker: WorkerResource) -> str:
    report = worker.report
    if not report.memory_limit_bytes:
        return ""
    return f"{report.memory_bytes / 1e9:.1f} of {human_bytes(report.memory_limit_bytes)}"


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:.0f} ms"


def _age(now: float, moment: str) -> str:
    seconds = max(now - from_rfc3339(moment).timestamp(), 0.0)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _line(prompt: str, limit: int = 40) -> str:
    line = " ".join(prompt.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
