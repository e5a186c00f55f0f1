"""Stages `streams`, `oom` and `graphs`: what an engine does with a GPU's streams, memory and graphs."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from PIL.Image import Image

from benchmarks.gpu.stages.families import min_psnr
from benchmarks.gpu.stages.finding import CUDA, Finding, Findings, Setting
from benchmarks.gpu.stages.flux_size import size_of, write_model
from benchmarks.gpu.stages.images import MIN_PSNR, drawn
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.models.pipelines.base import packed

_PLENTY = 2**50  # bytes and tokens: the engine shall not make steps small by itself
_NUM_STREAMED, _NUM_CROWDED, _NUM_FITTING = 6, 8, 3


def streams(setting: Setting) -> Findings:
    """Draw images one at a time, each alone and then all asked for at once.

    Every step holds one image either way, so the images are alike; asked for at once, the prompt of the next
    is encoded and it is denoised while the one before it is decoded, on streams of their own. What is read
    before it is written would show.
    """
    size = size_of(setting)
    requests = [size.request(seed, prompt=f"a red circle {seed}") for seed in range(_NUM_STREAMED)]
    config = EngineConfig(max_batch_size=1, prompt_cache_bytes=0)
    with (
        setting.cuda(),
        Engine.load(write_model(setting), device="cuda", dtype="bfloat16", config=config) as engine,
    ):
        engine.generate(requests[0])  # kernels are chosen, and built
        start = time.perf_counter()
        alone = [frames for request in requests for frames in drawn(engine, [request])]
        between = time.perf_counter()
        overlapped = drawn(engine, requests)
        seconds = between - start, time.perf_counter() - between
    yield Finding("seconds of 6 images, one after another", round(seconds[0], 2))
    yield Finding("seconds, asked for at once", round(seconds[1], 2))
    yield _alike("the same images, dB", alone, overlapped)


def oom(setting: Setting) -> Findings:
    """Ask for images that do not fit the memory together, of an engine that believes they do."""
    requests = [
        GenerationParams(prompt="a red circle", width=side, height=side, seed=seed, num_inference_steps=2)
        for seed, side in enumerate([64 if setting.is_pretended else 512] * _NUM_CROWDED)
    ]
    config = EngineConfig(token_budget=_PLENTY, memory_budget_bytes=_PLENTY)
    with setting.cuda(), Engine.load("tiny-flux", device="cuda", dtype="bfloat16", config=config) as engine:
        expected = [frames for request in requests for frames in drawn(engine, [request])]
        with _too_little_memory(setting, engine, requests) as failures:
            got = drawn(engine, requests)
            yield Finding("allocations that failed", len(failures), ok=len(failures) > 0)
        yield Finding("images drawn nevertheless", len(got), ok=len(got) == len(requests))
        yield _alike("as alone, dB", got, expected)
        yield _alike("and afterwards, dB", drawn(engine, requests), expected)


def _alike(what: str, left: Sequence[Sequence[Image]], right: Sequence[Sequence[Image]]) -> Finding:
    decibels = round(min_psnr(left, right), 1)
    return Finding(what, decibels, ok=decibels >= MIN_PSNR["bfloat16"])


@contextmanager
def _too_little_memory(
    setting: Setting, engine: Engine, requests: Sequence[GenerationParams]
) -> Iterator[list[str]]:
    """Let a few of the requests have room at once, and yield the list of steps and decodings that failed."""
    failures: list[str] = []

    def counted(work: Callable[..., Any]) -> Callable[..., Any]:
        def counting(items: Sequence[Any], *others: Any) -> Any:
            try:
                if setting.is_pretended and len(items) > _NUM_FITTING:
                    raise torch.OutOfMemoryError("pretended")
                return work(items, *others)
            except torch.OutOfMemoryError as error:
                failures.append(str(error))
                raise

        return counting

    pipeline = engine.pipeline
    with (
        patch.object(pipeline, "denoise", counted(packed(pipeline).denoise)),
        patch.object(pipeline, "decode", counted(packed(pipeline).decode)),
        _limit(setting, engine, requests),
    ):
        yield failures


@contextmanager
def _limit(setting: Setting, engine: Engine, requests: Sequence[GenerationParams]) -> Iterator[None]:
    """Limit this process's memory on the device to what it holds and a step of a few of the requests."""
    if setting.is_pretended:
        yield
        return
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    engine.generate(list(requests[:_NUM_FITTING]))
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.empty_cache()
    # The share is of all memory, and counts what the allocator has reserved.
    most = torch.cuda.memory_reserved() + 1.2 * (peak - held)
    torch.cuda.set_per_process_memory_fraction(most / torch.cuda.mem_get_info()[1], CUDA)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, CUDA)


def graphs(setting: Setting) -> Findings:
    """Say that there is no such path: engines capture no CUDA graphs, and launch every kernel of a step."""
    yield Finding("CUDA graphs", "none: engines launch every kernel of every step")
