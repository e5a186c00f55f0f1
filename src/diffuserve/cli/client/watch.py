"""Live progress of jobs on a server."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from rich.progress import BarColumn, Progress, TaskID, TimeElapsedColumn

from diffuserve.cli.display.console import Console, text_column
from diffuserve.domain.errors import ServerUnavailable
from diffuserve.domain.jobs.job import JobStatus, Phase
from diffuserve.domain.resources.job import JobResource, ProgressResource, QueueResource
from diffuserve.sdk.async_client import AsyncClient

Show = Callable[[JobResource], None]
ShowPreview = Callable[[Mapping[str, Any]], None]

_QUEUE_PERIOD_SECONDS = 1.0  # a queued job has no events, but its place in the queue changes


async def follow(
    client: AsyncClient, job: JobResource, show: Show, show_preview: ShowPreview | None = None
) -> JobResource:
    """Show each change of a job until its status is final; return the job in that state."""
    show(job)
    queue = asyncio.create_task(_follow_queue(client, job.id, show))
    try:
        async with aclosing(client.stream(job.id)) as events:
            async for event in events:
                if event.type == "progress":
                    show(advanced(job, event.data))
                elif event.type == "preview" and show_preview is not None:
                    show_preview(event.data)
    finally:
        queue.cancel()
        with suppress(asyncio.CancelledError):
            await queue
    job = await client.get(job.id)
    show(job)
    return job


def advanced(job: JobResource, event: Mapping[str, Any]) -> JobResource:
    """Return the job after a `progress` event."""
    progress = ProgressResource(
        step=event.get("step", 0),
        total=event.get("total", 0),
        fraction=event.get("fraction", 0.0),
        frames=event.get("frames", 0),
        num_frames=event.get("num_frames", 0),
    )
    return replace(job, status=JobStatus.RUNNING, queue=None, phase=Phase(event["phase"]), progress=progress)


async def _follow_queue(client: AsyncClient, job_id: str, show: Show) -> None:
    with suppress(ServerUnavailable):  # reading the events raises it too
        while (job := await client.get(job_id)).status is JobStatus.QUEUED:
            show(job)
            await asyncio.sleep(_QUEUE_PERIOD_SECONDS)


class JobBars:
    """A progress bar for each job."""

    def __init__(self, console: Console) -> None:
        columns = (
            text_column("{task.description}"),
            BarColumn(),
            text_column("{task.fields[state]}"),
        )
        self._console = console
        self._progress = Progress(*columns, TimeElapsedColumn(), console=console)
        self._bars: dict[str, TaskID] = {}
        self._reasons: set[tuple[str, str]] = set()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def show(self, job: JobResource) -> None:
        if job.id not in self._bars:
            self._bars[job.id] = self._progress.add_task(_title(job.final_prompt), total=None, state="")
        self._warn(job)
        bar = self._bars[job.id]
        done, total = _advance_of(job)
        if job.status is JobStatus.SUCCEEDED:
            done, total = (total, total) if total else (1, 1)
        self._progress.update(bar, completed=done, total=total, state=state_of(job))
        if job.status.is_final:
            self._progress.stop_task(bar)

    def _warn(self, job: JobResource) -> None:
        """Say once why a job cannot run: without a terminal there are no bars to tell it."""
        reason = reason_to_wait(job)
        if reason and (job.id, reason) not in self._reasons:
            self._reasons.add((job.id, reason))
            warn(self._console, job)


def _advance_of(job: JobResource) -> tuple[int, int | None]:
    """Return what is done and all that is to do: denoising steps, then the frames of clips."""
    if not job.progress:
        return 0, None
    return job.progress.step + job.progress.frames, job.progress.total + job.progress.num_frames


def reason_to_wait(job: JobResource) -> str | None:
    """Return why nobody knows when a queued job will run, `None` for any other job."""
    return job.queue.reason if job.queue is not None else None


def warn(console: Console, job: JobResource) -> None:
    """Print why a queued job does not run, if there is a reason."""
    if reason := reason_to_wait(job):
        text = f"job {job.id}: {reason}; it waits in the queue"
        console.print(text, style="yellow", highlight=False, soft_wrap=True)


def state_of(job: JobResource) -> str:
    """Describe the state of a job in a few words."""
    if job.status is JobStatus.QUEUED:
        if job.queue is None:
            return "queued"
        place = f"{job.queue.ahead} ahead" if job.queue.ahead else "next"
        return f"queued, {place}, {_time_left(job.queue)}"
    if job.status is not JobStatus.RUNNING:
        return str(job.status)
    if job.phase is Phase.DENOISE and job.progress and job.progress.total:
        return f"step {job.progress.step}/{job.progress.total}"
    if job.phase is Phase.DECODE and job.progress and job.progress.num_frames:
        return f"decoding {job.progress.frames}/{job.progress.num_frames} frames"
    return str(job.phase or job.status)


def _time_left(queue: QueueResource) -> str:
    """Return the seconds until the job is likely to end, or why nobody knows."""
    if queue.eta_s_low is None or queue.eta_s_high is None:
        return queue.reason or "for an unknown time"
    return f"{_seconds(queue.eta_s_low)}–{_seconds(queue.eta_s_high)} s"


def _seconds(value: float) -> str:
    return f"{value:.0f}" if value >= 1 else f"{value:.1f}"


def _title(prompt: str, limit: int = 44) -> str:
    line = " ".join(prompt.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
