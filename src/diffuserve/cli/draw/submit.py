"""`diffuserve submit`: a job for a server, and its images, clips or sounds."""

import asyncio
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffuserve.cli import options
from diffuserve.cli.adapter_files import refuse_files
from diffuserve.cli.display.console import Console
from diffuserve.cli.display.echo import echo
from diffuserve.cli.draw.job_option_flags import takes_job_options
from diffuserve.cli.draw.request_options import Asked, takes_request
from diffuserve.cli.exit_codes import FAILED, INTERRUPTED
from diffuserve.cli.images.destination import Destination
from diffuserve.cli.images.input_images import check_images
from diffuserve.domain.errors import InvalidParams, ModelNotFound
from diffuserve.domain.extras import Extra, missing_module
from diffuserve.domain.jobs.job import IMAGE_GENERATE, MAX_PREVIEWS, VIDEO_GENERATE, Band, JobStatus
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.requests.request_bounds import MAX_PROMPT_CHARACTERS
from diffuserve.models.folders.names import ALIASES
from diffuserve.settings import Settings

if TYPE_CHECKING:
    from diffuserve.cli.images.previews import Previews
    from diffuserve.domain.resources.job import JobResource
    from diffuserve.sdk.async_client import AsyncClient

EXAMPLES = """
Examples:

  diffuserve submit "a red circle on a white background" -o circle.png

  diffuserve submit "a lighthouse" --size 192x128 --steps 8 --priority batch

  diffuserve submit "a lighthouse" --deadline 60 --best-effort

  diffuserve submit "a lighthouse" -o lighthouse.png --no-store

  diffuserve submit "a lighthouse" -o lighthouse.png --preview --open

  diffuserve submit "a lighthouse in snow" --image lighthouse.png --strength 0.6 -o snow.png

  diffuserve submit "a red ball falls" --seconds 2 -o ball.mp4

  diffuserve submit "rain on a tin roof" --seconds 10 -o rain.flac

  diffuserve submit "a blue star" --wait --json --server https://images.example.com
"""

_SENT = ".png"  # as images are sent where no other format is asked for
_PICTURES = Extra.PICTURES.remedy


@dataclass(frozen=True)
class SubmitOptions:
    """A job to submit, the server, and what to do with the result."""

    params: GenerationParams
    model: str | None
    priority: Band | None
    settings: Settings
    is_waited_for: bool
    destination: Destination | None
    as_json: bool
    expand: bool = False
    has_previews: bool = False
    is_opened: bool = False
    kind: str = IMAGE_GENERATE
    deadline: float | str | None = None
    best_effort: bool = False
    exact: bool = False
    job_options: Mapping[str, Any] = field(default_factory=dict)


@options.takes_settings("server", "api_key")
@takes_request(
    images="PATH|URL|ID",
    without=("max_sequence_length",),
)
@takes_job_options
def submit(  # noqa: PLR0913 (a command has as many arguments as options)
    settings: Settings,
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="Description of the image; - for standard input.")
    ],
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the job is done.")] = False,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="A file of an image or a clip, or a folder; waits for it."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model that the server has.")] = None,
    asked: Asked,
    expand: Annotated[
        bool, typer.Option("--expand", help="Have a language model expand the prompt first.")
    ] = False,
    priority: Annotated[Band | None, typer.Option(help="Priority of the job; by default the plan's.")] = None,
    deadline: Annotated[
        str | None,
        typer.Option(help="When the result is needed: seconds from now, or a time: 2026-11-22T18:00Z."),
    ] = None,
    best_effort: Annotated[
        bool, typer.Option("--best-effort", help="Run the job even if it misses its deadline.")
    ] = False,
    exact: Annotated[
        bool, typer.Option("--exact", help="Run the job on workers alone whose weights are not quantized.")
    ] = False,
    job_options: Mapping[str, Any],
    preview: Annotated[
        bool,
        typer.Option(
            "--preview", help="Show previews in a file beside the output, and in a terminal that can."
        ),
    ] = False,
    open_: options.Open = False,
    as_json: options.Json = False,
) -> None:
    """Submit a job. Its id goes to stdout; with -o, the paths of its images.

    Ctrl-C while waiting leaves the job running.
    """
    refuse_files(asked.values["adapters"] or ())
    [params] = asked.requests([_read() if prompt == "-" else prompt])
    check_images(params)
    if output is None and open_:
        output = Path("out")
    kind = asked.clip.kind(output) or (IMAGE_GENERATE if params.seconds is None else VIDEO_GENERATE)
    destination = None if output is None else Destination.parse(output).of_kind(kind)
    if destination is not None:
        destination.check()
    _check_pictures(destination if kind == IMAGE_GENERATE else None, preview)
    submission = SubmitOptions(
        params,
        model,
        priority,
        settings,
        is_waited_for=wait or preview or output is not None,
        destination=destination,
        as_json=as_json,
        expand=expand,
        has_previews=preview,
        is_opened=open_,
        kind=kind,
        deadline=_parse_deadline(deadline),
        best_effort=best_effort,
        exact=exact,
        job_options=job_options,
    )
    raise typer.Exit(_run(submission))


def _read() -> str:
    """Return the one prompt of standard input. Raise `InvalidParams` if there is none."""
    prompt = sys.stdin.read(MAX_PROMPT_CHARACTERS + 1).strip()
    if not prompt:
        raise InvalidParams("prompt", "-", "standard input is empty; write the prompt there")
    return prompt


def _check_pictures(images: Destination | None, preview: bool) -> None:
    """Raise `InvalidParams` for what a client alone cannot do: convert images, and show previews."""
    module = missing_module(Extra.PICTURES)
    if module is not None and preview:
        raise InvalidParams("preview", preview, f"needs {module}, which is not installed; {_PICTURES}")
    if module is not None and images is not None and images.suffix.lower() != _SENT:
        remedy = f"is converted from {_SENT} by {module}, which is not installed; {_PICTURES}"
        raise InvalidParams("output", f"{images.stem}{images.suffix}", remedy)


def _parse_deadline(text: str | None) -> float | str | None:
    """Return seconds as a number, and a time as it is; the server knows what it means."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def _run(submission: SubmitOptions) -> int:
    submitted: list[str] = []  # the id of the job once it exists, for Ctrl-C
    try:
        return asyncio.run(_submit(submission, submitted))
    except KeyboardInterrupt:
        if submitted:
            Console(stderr=True).print(
                f"job {submitted[0]} continues; `diffuserve jobs cancel {submitted[0]}` cancels it",
                highlight=False,
            )
        return INTERRUPTED


async def _submit(submission: SubmitOptions, submitted: list[str]) -> int:
    from diffuserve.cli.client.connect import connect
    from diffuserve.client.codec import encode

    wanted: dict[str, Any] = dict(submission.job_options)
    if submission.expand:
        wanted["expand_prompt"] = True
    if submission.kind != IMAGE_GENERATE and submission.destination is not None:
        wanted["output_format"] = submission.destination.suffix.lower().removeprefix(".")
    if submission.has_previews:
        wanted["num_previews"] = MAX_PREVIEWS
    if submission.deadline is not None:
        wanted |= {"deadline": submission.deadline, "best_effort": submission.best_effort}
    if submission.exact:
        wanted["exact"] = True
    async with connect(submission.settings) as client:
        model = await served_name(client, submission.model)
        params = await _uploaded(client, submission.params)
        wanted |= {"model": model, "priority": submission.priority, "kind": submission.kind}
        with _serving_told(submission.model):
            told = await _tell_foreseen(client, params, wanted)
            job = await client.submit(params, **wanted)
    submitted.append(job.id)
    _tell_replaced(job)
    if submission.is_waited_for:
        return await _await_images(submission, job.id, told)
    if job.queue is not None and job.queue.reason:
        from diffuserve.cli.client.watch import warn  # it imports progress bars

        warn(Console(stderr=True), job)
    echo(encode(job) if submission.as_json else job.id)
    return 0


def _tell_replaced(job: "JobResource") -> None:
    """Say what the job has in place of what was asked for, where the server allows only some values."""
    for name, value in (job.asked or {}).items():
        text = f"{name} is {job.input[name]}, the nearest that this server allows to {value}"
        Console(stderr=True).warn(text)


async def _tell_foreseen(
    client: "AsyncClient", params: GenerationParams, fields: Mapping[str, Any]
) -> tuple[str, ...]:
    """Say what a job of a size of its own will warn of, before it is drawn, and return it.

    A job of the model's size costs no request for that.
    """
    if params.width is None and params.height is None:
        return ()
    foreseen = (await client.estimate(params, **fields)).warnings
    for warning in foreseen:
        Console(stderr=True).warn(warning)
    return foreseen


async def _uploaded(client: "AsyncClient", params: GenerationParams) -> GenerationParams:
    """Return the parameters of a job, whose local images are on the server now."""
    if not params.input_images:
        return params
    from diffuserve.cli.client.uploads import with_uploads  # it imports progress bars

    return await with_uploads(client, params, Console(stderr=True))


async def served_name(client: "AsyncClient", model: str | None) -> str | None:
    """Return the server's name of a model; a short name is also understood where the server has another."""
    if model is None or model not in ALIASES:
        return model
    served, other = {each.id for each in await client.models()}, ALIASES[model].partition("/")[2]
    # A server that starts serves none yet.
    return other if not served or (other in served and model not in served) else model


@contextmanager
def _serving_told(model: str | None) -> Iterator[None]:
    """Add what serves a known model to the refusal of one that is not served."""
    try:
        yield
    except ModelNotFound as error:
        if model not in ALIASES:
            raise
        raise ModelNotFound(f"{error}; `diffuserve serve --model {model}` serves it") from error


async def _await_images(submission: SubmitOptions, job_id: str, told: Collection[str]) -> int:
    from diffuserve.cli.client.connect import WAITING_PATIENCE_SECONDS, connect
    from diffuserve.cli.client.watch import JobBars, follow
    from diffuserve.cli.draw.fetch import fetch_images
    from diffuserve.cli.images.viewer import open_images
    from diffuserve.client.codec import encode

    console = Console(stderr=True)
    async with connect(submission.settings, patience_seconds=WAITING_PATIENCE_SECONDS) as client:
        with JobBars(console) as bars:
            job = await client.get(job_id)
            previews = _previews_of(submission, job, console)
            show_preview = None if previews is None else previews.show
            job = await follow(client, job, bars.show, show_preview)
        paths = []
        if submission.destination and job.status is JobStatus.SUCCEEDED:
            paths = await fetch_images(client, job, submission.destination)
    if submission.as_json:
        echo(encode(job))
    else:
        echo("\n".join(map(str, paths)) if paths else job.id)
    if submission.is_opened and paths:
        open_images(paths, console)
    if job.requested_model:
        console.warn(f"{job.model} draws it, in place of {job.requested_model}")
    for warning in job.result.warnings if job.result else ():
        if warning not in told:
            console.warn(warning)
    if job.status is JobStatus.SUCCEEDED:
        return 0
    reason = f": {job.error.message} ({job.error.code})" if job.error else ""
    text = f"job {job.id} {job.status}{reason}"
    console.print(text, style="red", highlight=False, soft_wrap=True)
    return FAILED


def _previews_of(submission: SubmitOptions, job: "JobResource", console: Console) -> "Previews | None":
    if not submission.has_previews:
        return None
    from diffuserve.cli.images.previews import Previews, preview_path

    return Previews(job, preview_path(submission.destination, job.id), console)
