"""Fit the linear map from latents to small RGB images that previews use.

    python scripts/fit_preview_map.py FOLDER

Generates images with the model, and fits by least squares the map from a latent cell to the mean
colour of the pixels that the decoder makes of it. Writes the map to the folder's `diffuserve.json`, and
prints its error.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from diffuserve import Engine, GenerationParams
from diffuserve.models.base import Pipeline
from diffuserve.models.flux.latents import unpack_latents
from diffuserve.models.flux.pipeline import FluxPipeline

COLOURS = (
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
    folder: Path = parser.parse_args().folder
    with Engine.load(str(folder), device="cpu", dtype="float32") as engine:
        latents, colours = sample(engine.pipeline)
    design = np.hstack([latents, np.ones((len(latents), 1))])
    solution, *_ = np.linalg.lstsq(design, colours, rcond=None)
    explained = 1 - ((design @ solution - colours) ** 2).sum() / ((colours - colours.mean(0)) ** 2).sum()
    preview = {"factors": solution[:-1].round(4).tolist(), "bias": solution[-1].round(4).tolist()}
    path = folder / "diffuserve.json"
    settings = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(settings | {"preview": preview}, indent=2) + "\n")
    print(f"wrote {path}; the map explains {explained:.1%} of the colours' variance")


def sample(pipeline: Pipeline) -> tuple[np.ndarray, np.ndarray]:
    """Return latent cells (n, channels), and the mean colours (n, 3) in -1…1 that the decoder gives them."""
    assert isinstance(pipeline, FluxPipeline)
    requests = [
        pipeline.spec.resolve(
            GenerationParams(prompt=f"a large {colour} circle on a {background} background", seed=7), seed=0
        )
        for colour in COLOURS
        for background in COLOURS
        if colour != background
    ]
    latents, colours = [], []
    with Engine(pipeline) as engine:
        finished: dict[str, torch.Tensor] = {}
        decode = pipeline.decode

        def keep_latents(batch, params):  # type: ignore[no-untyped-def]
            finished.update({request.prompt: tokens for request, tokens in zip(params, batch, strict=True)})
            return decode(batch, params)

        pipeline.decode = keep_latents  # type: ignore[method-assign]
        for result in engine.generate(requests):
            rows = result.images[0].height // 16
            cells = unpack_latents(finished[result.params.prompt], rows)[0]
            latents.append(cells.flatten(1).T.numpy())
            pixels = np.asarray(result.images[0], dtype=np.float64) / 127.5 - 1
            height, width = cells.shape[1:]
            colours.append(pixels.reshape(height, 8, width, 8, 3).mean(axis=(1, 3)).reshape(-1, 3))
    return np.concatenate(latents), np.concatenate(colours)


if __name__ == "__main__":
    main()
