"""`diffuserve jobs`: listing, showing, canceling and requeuing jobs."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from diffuserve.cli import options
from diffuserve.cli.client.ask import ask
from diffuserve.cli.display.echo import echo
from diffuserve.cli.display.results import print_facts, results
from diffuserve.client.codec import encode
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.domain.resources.job import ArtifactResource, JobResource
from diffuserve.domain.text.timestamps import from_rfc3339
from diffuserve.settings import Settings

if TYPE_CHECKING:
    from diffuserve.sdk.async_client import AsyncClient

EXAMPLES = """
Examples:

  diffuserve jobs list --status queued --status running

  diffuserve jobs list --model tiny-flux --query "red circle"

  diffuserve jobs show ID --json

  diffuserve jobs cancel ID

  diffuserve jobs requeue ID
"""

jobs = typer.Typer(name="jobs", help="Jobs on a server.", epilog=EXAMPLES, no_args_is_help=True)

JobId = Annotated[str, typer.Argument(metavar="ID", help="Id that `diffuserve submit` printed.")]


@jobs.command("list", epilog=EXAMPLES)
@options.takes_settings("server", "api_key")
def list_jobs(  # noqa: PLR0913 (one for each option)
    settings: Settings,
    status: Annotated[
        list[JobStatus] | None, typer.Option(help="Only jobs with this status; may be repeated.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Only jobs of this model.")] = None,
    kind: Annotated[
        str | None,
        typer.Option(help="Only jobs of this kind: `image.generate`, `video.generate`, `audio.generate`."),
    ] = None,
    query: Annotated[str | None, typer.Option(help="Words that all occur in the prompt.")] = None,
    batch: Annotated[str | None, typer.Option(help="Only items of the batch with this id.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Maximum number of jobs.")] = 20,
    as_json: options.Json = False,
) -> None:
    """List jobs, newest first."""
    from diffuserve.sdk.async_client import JobFilters

    filters = JobFilters(model=model, kind=kind, query=query, batch_id=batch)
    page = ask(settings, lambda client: client.find_jobs(status or [], filters=filters, limit=limit))
    if as_json:
        echo(encode(page))
        return
    table = Table(box=None, header_style="bold")
    for name in ("id", "status", "model", "age"):
        table.add_column(name, no_wrap=True)
    table.add_column("prompt")  # shrinks first on a narrow screen
    for job in page.data:
        made, prompt = age(from_rfc3339(job.created_at)), _line(job.final_prompt)
        table.add_row(job.id, job.status, job.model, made, prompt)
    results().print(table)


@jobs.command()
@options.takes_settings("server", "api_key")
def show(settings: Settings, job_id: JobId, as_json: options.Json = False) -> None:
    """Show one job."""
    job = ask(settings, lambda client: client.get(job_id))
    if as_json:
        echo(encode(job))
        return
    print_facts(_description(job))


@jobs.command()
@options.takes_settings("server", "api_key")
def cancel(settings: Settings, job_id: JobId, as_json: options.Json = False) -> None:
    """Cancel a job; a running job stops after its current step."""
    job = ask(settings, lambda client: client.cancel(job_id))
    echo(encode(job) if as_json else f"{job.id} {job.status}")


@jobs.command(epilog=EXAMPLES)
@options.takes_settings("server", "api_key")
def requeue(
    settings: Settings,
    job_ids: Annotated[list[str], typer.Argument(metavar="ID…", help="Ids of one job or several.")],
    as_json: options.Json = False,
) -> None:
    """Queue jobs again that failed, expired or were canceled, with fresh attempts; for operators."""
    for job in ask(settings, lambda client: _requeue(client, job_ids)):
        echo(encode(job) if as_json else f"{job.id} {job.status}")


async def _requeue(client: "AsyncClient", job_ids: list[str]) -> list[JobResource]:
    return [await client.requeue(job_id) for job_id in job_ids]


def _origin(job: JobResource) -> str:
    """Return the client's own prompt, if another one was used or its expansion was asked for."""
    prompt = job.prompt
    if prompt is None or (prompt.original == job.final_prompt and not prompt.expansion):
        return ""
    outcome = ": ".join(part for part in (prompt.expansion, prompt.reason) if part)
    return f"{prompt.original} ({outcome})" if outcome else prompt.original


def _description(job: JobResource) -> dict[str, str]:
    from diffuserve.cli.client.watch import state_of

    images = job.result.outputs if job.result else []
    return {
        "id": job.id,
        "status": state_of(job),
        "error": f"{job.error.message} ({job.error.code})" if job.error else "",
        "model": job.model,
        "prompt": job.final_prompt,
        "from": _origin(job),
        "input": ", ".join(
            f"{name} {_named(value)}" for name, value in job.input.items() if name != "prompt"
        ),
        "priority": str(job.priority),
        "attempt": str(job.attempt),
        "created": _time(from_rfc3339(job.created_at)),
        "started": _time(from_rfc3339(job.started_at)),
        "finished": _time(from_rfc3339(job.finished_at)),
        "images": "\n".join(f"{_size(image)} {image.url}" for image in images),
        "warnings": "\n".join(job.result.warnings) if job.result else "",
    }


def _size(file: ArtifactResource) -> str:
    return f"{file.width}x{file.height}" if file.seconds is None else f"{file.seconds:g} s"


def _named(value: Any) -> str:
    """Return a parameter's value in words; images are named by their ids."""
    if isinstance(value, list):
        return " and ".join(map(_named, value))
    return str(value["id"]) if isinstance(value, Mapping) and "id" in value else str(value)


def _line(prompt: str, limit: int = 40) -> str:
    line = " ".join(prompt.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def age(moment: datetime) -> str:
    """Spell the time since a moment by its largest unit."""
    seconds = (datetime.now(UTC) - moment).total_seconds()
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def _time(moment: datetime | None) -> str:
    return moment.astimezone().isoformat(sep=" ", timespec="seconds") if moment else ""
