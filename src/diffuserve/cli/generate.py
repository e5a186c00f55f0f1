"""`diffuserve generate`: prompts in, image files out."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from diffuserve.cli import options
from diffuserve.cli.destination import Destination
from diffuserve.cli.exit_codes import INTERRUPTED
from diffuserve.cli.loading import load_engine
from diffuserve.domain.params import GenerationParams
from diffuserve.settings import Settings

EXAMPLES = """
Examples:

  diffuserve generate "a red circle on a white background"

  diffuserve generate "a blue star" "a green ring" --size 192x128 --steps 8 --seed 7 --grid

  diffuserve generate "a lighthouse" --model black-forest-labs/FLUX.1-schnell -o lighthouse.png
"""


def parse_size(text: str | None) -> tuple[int | None, int | None]:
    """`128x96` as width and height."""
    if text is None:
        return None, None
    match = re.fullmatch(r"(-?\d+)\s*[xX×]\s*(-?\d+)", text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is not WIDTHxHEIGHT; for example --size 128x96")
    return int(match[1]), int(match[2])


@options.takes_settings(
    *("model", "device", "dtype", "deterministic", "prompt_filter", "image_filter", "file_metadata")
)
def generate(  # noqa: PLR0913 (a command has as many arguments as options)
    settings: Settings,
    prompts: Annotated[list[str], typer.Argument(metavar="PROMPT…", help="What to draw; one or more.")],
    size: Annotated[str | None, typer.Option(metavar="WxH", help="In pixels, multiples of 16.")] = None,
    steps: Annotated[int | None, typer.Option(help="Denoising steps, 1-100.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of the first image; prompt i and image j add their number.")
    ] = None,
    num_images: Annotated[int, typer.Option(help="Images of each prompt.")] = 1,
    guidance: Annotated[
        float | None, typer.Option(help="Guidance scale, 0-20, where a model has it.")
    ] = None,
    max_sequence_length: Annotated[
        int | None, typer.Option(help="Prompt tokens the model reads; part of what it learnt.")
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="An image file, or a folder.")] = Path("out"),
    grid: Annotated[bool, typer.Option("--grid", help="Also put all images on one sheet.")] = False,
) -> None:
    """Draw images from prompts, all of them together."""
    width, height = parse_size(size)
    requests = [
        GenerationParams(
            prompt=prompt,
            width=width,
            height=height,
            num_inference_steps=steps,
            guidance_scale=guidance,
            seed=None if seed is None else seed + i * num_images,
            num_images=num_images,
            max_sequence_length=max_sequence_length,
        )
        for i, prompt in enumerate(prompts)
    ]
    raise typer.Exit(draw(requests, settings, output, grid))


async def screen(settings: Settings, requests: Sequence[GenerationParams]) -> list[GenerationParams]:
    """With cleaned prompts, as a control plane does it. Raises `PromptBlocked` before anything is loaded."""
    from diffuserve.cli.wiring.safety import open_prompts
    from diffuserve.prompts.cleaning import clean

    cleaned = [replace(one, prompt=clean(one.prompt)) for one in requests]
    async with open_prompts(settings) as prompts:
        for one in cleaned:
            await prompts.moderate(one.prompt)
    return cleaned


def draw(requests: Sequence[GenerationParams], settings: Settings, output: Path, grid: bool) -> int:
    """Check the prompts, generate, check the images, save and report; return the exit code."""
    console = Console(stderr=True)
    from diffuserve.cli.output import ImageWriter, print_timings
    from diffuserve.cli.run import run_requests
    from diffuserve.cli.wiring.worker import checked
    from diffuserve.worker.image_output import open_image_output

    destination, config = Destination.parse(output), checked(settings.engine_process)
    requests = asyncio.run(screen(settings, requests))
    with load_engine(config, console) as engine:
        for one in requests:
            engine.spec.resolve(one, seed=0)  # refuse all before starting any
        num_images = sum(one.num_images for one in requests)
        desk = open_image_output(config.model, config.images)
        writer = ImageWriter(destination, desk, num_images)
        run = run_requests(engine, requests, console, writer.save)
    results = [run.results[index] for index in sorted(run.results)]
    if results:
        print_timings(console, results)
    if grid and results:
        typer.echo(writer.save_sheet(results))
    for index in sorted(writer.paths):
        for path in writer.paths[index]:
            typer.echo(path)
    for result in results:
        for warning in result.warnings:
            console.print(f"warning: {result.params.prompt[:40]!r}: {warning}", style="yellow", markup=False)
    for error in run.errors.values():
        console.print(f"error: {error}", style="red", markup=False)
    if run.interrupted:
        console.print(f"stopped: {len(results)} of {len(requests)} requests were finished", style="yellow")
        return INTERRUPTED
    return 1 if run.errors else 0
