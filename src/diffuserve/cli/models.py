"""`diffuserve models`: the bundled models."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from diffuserve.models.bundled import bundled_models
from diffuserve.models.folder import ModelFolder


def models() -> None:
    """List the bundled models, and show how to use others."""
    console = Console()
    table = Table("name", "pipeline", "size", "steps", "on disk", "folder", box=None, header_style="bold")
    for name, path in bundled_models().items():
        folder = ModelFolder(path)
        settings = folder.settings
        size = f"{settings.get('width', '?')}x{settings.get('height', '?')}"
        steps = str(settings.get("num_inference_steps", "?"))
        table.add_row(name, folder.pipeline_class, size, steps, f"{_megabytes(path):.1f} MB", str(path))
    console.print(table)
    console.print(
        "\nAny FLUX.1 folder in diffusers' format works as well, and hub ids such as "
        "black-forest-labs/FLUX.1-schnell:\n  diffuserve generate PROMPT --model /models/FLUX.1-schnell",
        highlight=False,
        markup=False,
    )


def _megabytes(path: Path) -> float:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) / 1e6
