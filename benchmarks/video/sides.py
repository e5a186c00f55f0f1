"""Clips of the engine and of diffusers' pipeline, each in its own process."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL.Image import Image

from benchmarks.video.workloads import CHECKPOINT
from diffuserve.domain.models.description import shown
from diffuserve.domain.requests.params import GenerationParams

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


class StockSide:
    """diffusers' `WanPipeline` in the engine's dtype, its autoencoder channels-last."""

    def __init__(self) -> None:
        import torch
        from diffusers import WanPipeline

        from benchmarks.shared.default_dtype import engine_dtype

        self._torch = torch
        self._pipeline = WanPipeline.from_pretrained(
            CHECKPOINT, dtype=engine_dtype(), local_files_only=True, trust_remote_code=False
        )
        self._pipeline.set_progress_bar_config(disable=True)
        for layer in self._pipeline.vae.modules():  # with which it decodes in two thirds of the time
            if isinstance(layer, torch.nn.Conv3d):
                layer.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
            elif isinstance(layer, torch.nn.Conv2d):
                layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def run_all(self, requests: Sequence[GenerationParams], batch_size: int = 1) -> float:
        """Return the seconds for all requests, in calls of `batch_size` equal ones."""
        start = time.perf_counter()
        for first in range(0, len(requests), batch_size):
            self._call(requests[first : first + batch_size])
        return time.perf_counter() - start

    def draw(self, requests: Sequence[GenerationParams]) -> list[Pixels]:
        """Return the frames of each request, drawn by itself."""
        return [_pixels(self._call([request])[0]) for request in requests]

    def _call(self, requests: Sequence[GenerationParams]) -> Any:
        first = requests[0]
        seeds = [request.seed or 0 for request in requests]
        with self._torch.inference_mode():
            result = self._pipeline(
                [request.prompt for request in requests],
                width=first.width,
                height=first.height,
                num_frames=first.num_frames,
                num_inference_steps=first.num_inference_steps,
                guidance_scale=first.guidance_scale,
                max_sequence_length=first.max_sequence_length,
                generator=[self._torch.Generator("cpu").manual_seed(seed) for seed in seeds],
                output_type="pil",
            )
        return result.frames


class OurSide:
    """The engine with its default settings."""

    def __init__(self) -> None:
        from diffuserve import Engine

        self._engine = Engine.load(str(CHECKPOINT), device="cpu")

    def run_all(self, requests: Sequence[GenerationParams]) -> float:
        """Submit all requests at once; return the seconds until all are finished."""
        start = time.perf_counter()
        self._engine.generate(requests)
        return time.perf_counter() - start

    def draw(self, requests: Sequence[GenerationParams]) -> list[Pixels]:
        """Return the frames of each request, drawn beside the others."""
        return [_pixels(result.frames[0]) for result in self._engine.generate(requests)]

    def mean_requests_per_step(self) -> float:
        return self._engine.stats.mean_requests_per_step

    def describe(self) -> dict[str, str]:
        return shown(self._engine.describe())


def _pixels(frames: Sequence[Image]) -> Pixels:
    return np.stack([np.asarray(frame) for frame in frames])
