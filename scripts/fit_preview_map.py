"""Fit the linear map from latents to small RGB images that previews use.

    python scripts/fit_preview_map.py FOLDER

Generates images or clips with the model, and fits by least squares the map from a latent cell to the mean
color of the pixels that the decoder makes of it; in clips, of all frames that it stands for. Writes the map
to the folder's `diffuserve.json`, and prints its error.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from diffuserve import Engine, GenerationParams
from diffuserve.models.families.flux.pipeline import FluxPipeline
from diffuserve.models.families.packed_images.latents import unpack_latents
from diffuserve.models.frames import Frames
from diffuserve.models.pipelines.base import Pipeline, packed

COLORS = (
    "red",
    "green",
    "blue",
    "yellow",
    "orange",
    "purple",
    "pink",
    "cyan",
    "brown",
    "black",
    "white",
    "gray",
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    circles = [f"{color} circle" for color in COLORS]
    parser.add_argument("--things", nargs="+", default=circles, help="what to draw, on each background")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    with Engine.load(str(folder), device="cpu", dtype="float32") as engine:
        latents, colors = sample(engine, arguments.things)
    design = np.hstack([latents, np.ones((len(latents), 1))])
    solution, *_ = np.linalg.lstsq(design, colors, rcond=None)
    explained = 1 - ((design @ solution - colors) ** 2).sum() / ((colors - colors.mean(0)) ** 2).sum()
    preview = {"factors": solution[:-1].round(4).tolist(), "bias": solution[-1].round(4).tolist()}
    path = folder / "diffuserve.json"
    settings = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(settings | {"preview": preview}, indent=2) + "\n")
    print(f"wrote {path}; the map explains {explained:.1%} of the colors' variance")


def sample(engine: Engine, things: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return latent cells (n, channels), and the mean colors (n, 3) in -1…1 that the decoder gives them."""
    cells, colors = [], []
    for params, latents in finished_latents(engine, things):
        for cell_rows, frames in decoded(engine.pipeline, latents, params):
            height, width = cell_rows.shape[1:]
            scale = frames[0].height // height
            pixels = np.mean([np.asarray(frame, dtype=np.float64) for frame in frames], axis=0) / 127.5 - 1
            cells.append(cell_rows.float().flatten(1).T.numpy())
            squares = pixels.reshape(height, scale, width, scale, 3)
            colors.append(squares.mean(axis=(1, 3)).reshape(-1, 3))
    return np.concatenate(cells), np.concatenate(colors)


def finished_latents(
    engine: Engine, things: Sequence[str]
) -> Iterator[tuple[GenerationParams, torch.Tensor]]:
    """Draw all things before each color that is not theirs, without decoding them."""
    for thing in things:
        for background in COLORS:
            if background not in thing:
                prompt = f"a large {thing} on a {background} background"
                engine.add(GenerationParams(prompt=prompt, seed=7), until_denoised=True)
    while outputs := engine.step():
        for output in outputs:
            if output.error is not None:
                raise output.error
            if output.result is not None and output.result.latents is not None:
                yield output.result.params, output.result.latents


def decoded(
    pipeline: Pipeline, latents: torch.Tensor, params: GenerationParams
) -> Iterator[tuple[torch.Tensor, Frames]]:
    """Yield the cells (channels, rows, columns) of each latent frame, and the frames that it becomes."""
    if pipeline.spec.is_video and latents.ndim == 5:
        decoded = packed(pipeline).decode_chunks(latents, params)
        chunks = (chunk for chunk in decoded if isinstance(chunk, list))
        yield from zip(latents[0].unbind(1), chunks, strict=True)
        return
    [[frames]] = packed(pipeline).decode([latents], [params])
    assert isinstance(frames, list)
    if isinstance(pipeline, FluxPipeline):
        latents = unpack_latents(latents, frames[0].height // 16)
    yield latents[0], frames


if __name__ == "__main__":
    main()
