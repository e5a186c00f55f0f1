"""`diffuserve generate`: images, clips and sounds from prompts, without a server."""

import asyncio
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffuserve.cli import options
from diffuserve.cli.display.console import Console
from diffuserve.cli.display.echo import echo
from diffuserve.cli.draw.loading import load_engine, uncollected
from diffuserve.cli.draw.request_options import BY_FILE, Asked, takes_request
from diffuserve.cli.exit_codes import FAILED, INTERRUPTED
from diffuserve.cli.images.clips import (
    NO_CLIP,
    ClipOptions,
    check_file,
    check_leaves,
    kind_for,
    with_lengths,
)
from diffuserve.cli.images.destination import Destination
from diffuserve.cli.images.input_images import read_images
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import JUDGED, GenerationParams
from diffuserve.domain.requests.prompt_syntax import with_named_adapters
from diffuserve.protocol.config import EngineProcessConfig
from diffuserve.settings import Settings

if TYPE_CHECKING:
    from diffuserve.cli.draw.run import DrawingRun
    from diffuserve.cli.images.output import ImageWriter

EXAMPLES = """
Examples:

  diffuserve generate "a red circle on a white background"

  diffuserve generate "a blue star" "a green ring" --size 192x128 --steps 8 --seed 7 --grid

  diffuserve generate - --steps 8 < prompts.txt

  diffuserve generate "a lighthouse in snow" --image lighthouse.png --strength 0.6

  diffuserve generate "a red boat" --image harbor.png --mask boat-mask.png --negative-prompt "people"

  diffuserve generate "a lighthouse" --model black-forest-labs/FLUX.1-schnell -o lighthouse.png

  diffuserve generate "a red boat" --adapter ink.safetensors:0.8

  diffuserve generate "a red ball falls" --model my-wan --frames 17 -o ball.mp4

  diffuserve generate "it bounces" --model my-wan --image ball.png --seconds 2 -o bounce.webm

  diffuserve generate "rain on a tin roof" --model my-sounds --seconds 10 -o rain.wav
"""


@options.takes_settings(
    *("model", "device", "dtype", "quantization", "offload", "deterministic"),
    *("adapter_files", "controlnets", "image_prompter"),
    *("prompt_filter", "image_filter", "allow_unjudged_audio", "file_metadata"),
    *options.LOCAL_STORE_OPTIONS,
)
@takes_request(
    images="PATH|URL",
    adapters_by=BY_FILE,
    seed="Seed of the first image; prompt i and image j add their number; by default random.",
)
def generate(
    settings: Settings,
    prompts: Annotated[
        list[str],
        typer.Argument(metavar="PROMPT…", help="Descriptions of images; - for lines of standard input."),
    ],
    *,
    asked: Asked,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="A file of an image, a clip or a sound, or a folder.")
    ] = Path("out"),
    grid: Annotated[
        bool, typer.Option("--grid", help="Also write a contact sheet of all images, and of clips' posters.")
    ] = False,
    open_: options.Open = False,
) -> None:
    """Generate images, clips or sounds from prompts, all of them together."""
    asked, settings = asked.with_files(settings)
    requests = asked.requests(with_lines(prompts))
    raise typer.Exit(generate_images(requests, settings, output, grid, open_, asked.clip))


def with_lines(prompts: Sequence[str]) -> list[str]:
    """Return the prompts, where `-` stands for the lines of standard input. Raise `InvalidParams`."""
    found: list[str] = []
    for prompt in prompts:
        found += [line for line in map(str.strip, sys.stdin) if line] if prompt == "-" else [prompt]
    if not found:
        raise InvalidParams("prompt", "-", "standard input is empty; write a prompt on each line")
    return found


async def screen(settings: Settings, requests: Sequence[GenerationParams]) -> list[GenerationParams]:
    """Return the requests with cleaned prompts, as a control plane does. Raise `PromptBlocked`."""
    from diffuserve.wiring.safety import open_prompts

    cleaned = [_cleaned(request) for request in requests]
    own = settings.model_copy(update={"prompt_filter_processes": 0})  # nothing else waits for this one
    async with open_prompts(own) as prompts:
        for request in cleaned:
            for text in filter(None, (getattr(request, name) for name in JUDGED)):
                await prompts.moderate(text)
    return cleaned


def _cleaned(request: GenerationParams) -> GenerationParams:
    from diffuserve.prompts.cleaning import cleaned

    return replace(request, **cleaned(vars(request)))


def generate_images(
    requests: Sequence[GenerationParams],
    settings: Settings,
    output: Path,
    grid: bool,
    is_opened: bool = False,
    clip: ClipOptions = NO_CLIP,
) -> int:
    """Check everything, generate, check the images, save and report; return the exit code."""
    console = Console(stderr=True)
    with ExitStack() as stack:
        with uncollected():
            from diffuserve.cli.preflight import fetched

            config = fetched(settings.engine_process)
            requests, destination = check(requests, settings, config, output, clip)

            from diffuserve.cli.images.output import ImageWriter
            from diffuserve.engine_process.output.image_output import open_image_output

            beside = stack.enter_context(ThreadPoolExecutor(1))  # the image filter, while the model loads
            image_output = beside.submit(open_image_output, config.model, config.images)
            engine = stack.enter_context(load_engine(config, console))

            from diffuserve.cli.draw.run import run_requests  # it imports torch, and the engine already has
        images = image_output.result().of(engine.pipeline)
        num_images = sum(request.num_images for request in requests)
        writer = stack.enter_context(closing(ImageWriter(destination, images, num_images, console)))
        run = run_requests(engine, requests, console, writer.save, writer.add_frames)
    paths = _written(run, writer, grid)
    echo("\n".join(map(str, paths)), nl=bool(paths))
    if is_opened:
        from diffuserve.cli.images.viewer import open_images

        open_images(paths[:1] if grid else paths, console)
    return _report(run, len(requests), console)


def check(
    requests: Sequence[GenerationParams],
    settings: Settings,
    config: EngineProcessConfig,
    output: Path,
    clip: ClipOptions = NO_CLIP,
) -> tuple[list[GenerationParams], Destination]:
    """Return the requests with what their prompts name, clean prompts and lengths, and where their files go.

    Raise what would go wrong, before torch is imported.
    """
    from diffuserve.cli.preflight import check_requests, model_spec

    destination, asked = Destination.parse(output), clip.kind(output)
    destination.check()
    requests = read_images(requests)
    spec = model_spec(config)
    kind = kind_for(spec, asked, clip)
    check_leaves(kind, config.images)
    destination = destination.of_kind(kind)
    requests = [_with_adapters(request, spec) for request in requests]
    requests = with_lengths(requests, spec, kind, clip, output)
    check_requests(config, requests)
    for request in requests:
        check_file(kind, spec, spec.resolve(request, seed=0), destination)
    return asyncio.run(screen(settings, requests)), destination


def _with_adapters(request: GenerationParams, spec: ModelSpec) -> GenerationParams:
    """Return the request with the adapters that its prompt names, where the model takes any."""
    return replace(request, **with_named_adapters(vars(request))) if spec.max_adapters else request


def _written(run: "DrawingRun", writer: "ImageWriter", grid: bool) -> list[Path]:
    """Return the paths of all files: first the contact sheet, which is written here."""
    sheet = [writer.save_sheet(run.finished)] if grid and run.finished else []
    return sheet + [path for index in sorted(writer.paths) for path in writer.paths[index]]


def _report(run: "DrawingRun", num_requests: int, console: Console) -> int:
    """Print timings, warnings and errors; return the exit code."""
    from diffuserve.cli.images.output import print_timings

    if run.finished:
        print_timings(console, run.finished)
    for result in run.finished:
        for warning in (text for text in result.warnings if text not in run.told):
            console.print(f"warning: {result.params.prompt[:40]!r}: {warning}", style="yellow")
    for error in run.errors.values():
        console.print(f"error: {error}", style="red")
    if run.interrupted:
        console.print(
            f"stopped: {len(run.finished)} of {num_requests} requests were finished", style="yellow"
        )
        return INTERRUPTED
    return FAILED if run.errors else 0
