"""Stages `eager`, `compiled`, `fp8` and `int8`: images a minute and memory of a model of FLUX.1's size."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.stages.finding import Finding, Findings, Setting
from benchmarks.gpu.stages.flux_size import TEXT_TOKENS, Size, size_of, write_model
from benchmarks.gpu.stages.machine import matmul_ceiling
from diffuserve.engine.engine import Engine
from diffuserve.models.families.flux.config import FluxConfig

_GIB = 2**30


def eager(setting: Setting) -> Findings:
    yield from _measured(setting)


def compiled(setting: Setting) -> Findings:
    """Measure with the transformer's blocks compiled by `torch.compile`, which engines do ahead of time."""
    if setting.is_pretended:
        yield Finding("compiled", "not run: torch.compile knows no pretended device")
        return
    yield from _measured(setting, is_compiled=True)


def fp8(setting: Setting) -> Findings:
    yield from _measured(setting, quantization="fp8")


def int8(setting: Setting) -> Findings:
    yield from _measured(setting, quantization="int8")


def _measured(setting: Setting, quantization: str | None = None, is_compiled: bool = False) -> Findings:
    size = size_of(setting)
    with setting.cuda():
        ceiling = matmul_ceiling(size.product_side)
        start = time.perf_counter()
        folder = write_model(setting)
        yield Finding("seconds to write the weights", round(time.perf_counter() - start, 1))
        with _loaded(folder, quantization, is_compiled) as engine:
            yield Finding("seconds to load", round(time.perf_counter() - start, 1))
            yield from _figures(engine, size, ceiling)


@contextmanager
def _loaded(folder: Path, quantization: str | None, is_compiled: bool) -> Iterator[Engine]:
    with Engine.load(folder, device="cuda", dtype="bfloat16", quantization=quantization) as engine:
        if is_compiled:
            transformer: Any = engine.pipeline.transformer  # type: ignore[attr-defined]
            for block in (*transformer.transformer_blocks, *transformer.single_transformer_blocks):
                block.compile(dynamic=True)
        yield engine


def _figures(engine: Engine, size: Size, ceiling: float) -> Findings:
    first = draw_images(engine, size, count=2)  # kernels are chosen, and built
    yield Finding("seconds of the first two images", round(first, 1))
    torch.cuda.reset_peak_memory_stats()
    steps, stepping = engine.stats.num_request_steps, engine.stats.denoise_seconds
    seconds = draw_images(engine, size, size.num_images)
    steps = engine.stats.num_request_steps - steps
    stepping = engine.stats.denoise_seconds - stepping
    share = steps * step_operations(engine, size) / stepping / ceiling
    yield Finding("images a minute", round(60 * size.num_images / seconds, 1))
    yield Finding("ms a step of an image", round(1_000 * stepping / steps, 1))
    yield Finding("share of the ceiling", round(share, 2))
    yield Finding("peak GiB", round(torch.cuda.max_memory_allocated() / _GIB, 1))


def draw_images(engine: Engine, size: Size, count: int) -> float:
    """Return the seconds in which the engine draws images of one prompt, all asked for at once."""
    start = time.perf_counter()
    engine.generate([size.request(seed) for seed in range(count)])
    return time.perf_counter() - start


def step_operations(engine: Engine, size: Size) -> float:
    """Return the operations of one image's part of a step: products and attention."""
    config: FluxConfig = engine.pipeline.transformer.config  # type: ignore[attr-defined]
    tokens = TEXT_TOKENS + size.width * size.height // engine.spec.pixels_per_token
    return float(config.token_operations * tokens + config.pair_operations * tokens**2)
