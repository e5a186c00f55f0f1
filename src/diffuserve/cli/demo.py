"""`diffuserve demo`: a dozen prompts of mixed sizes and steps through one engine."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from diffuserve.cli.loading import ModelChoice, load_engine
from diffuserve.domain.params import GenerationParams

# Prompt, width, height, steps.
SCENES = (
    ("a large red circle on a white background", 128, 128, 6),
    ("a large blue star on a yellow background", 128, 128, 8),
    ("a green triangle on a black background", 112, 112, 4),
    ("a small yellow circle at the top left on a blue background", 128, 128, 6),
    ("a large purple ring on a white background", 128, 128, 5),
    ("a large pink heart on a white background", 144, 144, 4),
    ("an orange square on a cyan background", 96, 96, 2),
    ("a cyan diamond on a purple background", 128, 128, 3),
    ("a green square left of a pink ring on a white background", 128, 112, 8),
    ("a large white cross on a red background", 112, 112, 4),
    ("a large brown square on a pink background", 64, 64, 2),
    ("a large black star on an orange background", 128, 96, 4),
)


def demo(
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the pictures.")] = Path(
        "out/demo"
    ),
) -> None:
    """Draw a dozen prompts of mixed sizes and steps together, and show what it took."""
    console = Console(stderr=True)
    requests = [
        GenerationParams(prompt=prompt, width=width, height=height, num_inference_steps=steps, seed=7 + i)
        for i, (prompt, width, height, steps) in enumerate(SCENES)
    ]
    with load_engine(ModelChoice(model="tiny-flux"), console) as engine:
        from diffuserve.cli.output import Destination, PictureWriter, print_timings
        from diffuserve.cli.run import run_requests

        writer = PictureWriter(Destination.parse(output), engine.spec.name, len(requests))
        start = time.perf_counter()
        run = run_requests(engine, requests, console, writer.save)
        seconds = time.perf_counter() - start
    results = [run.results[index] for index in sorted(run.results)]
    print_timings(console, results)
    console.print(
        f"{len(results)} pictures in {seconds:.2f} s ({len(results) / seconds:.1f} a second), "
        f"{engine.stats.mean_requests_per_step:.1f} requests a step on average",
        highlight=False,
    )
    if results:
        typer.echo(f"look at {writer.save_sheet(results)}")
    raise typer.Exit(0 if len(results) == len(requests) else 1)
