"""The two sides of a comparison, each in its own process, which sleeps while the other runs.

In a single process the thread pools of two libraries would slow each other down.
"""

import asyncio
import multiprocessing
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.shared.workloads import CHECKPOINT, Arrivals
from diffuserve.domain.models.description import shown
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig

Latencies = list[float]


class StockSide:
    """diffusers' `FluxPipeline`, as its documentation uses it, in the engine's dtype."""

    def __init__(self) -> None:
        import torch
        from diffusers import FluxPipeline

        from benchmarks.shared.default_dtype import engine_dtype

        self._torch = torch
        self._pipeline = FluxPipeline.from_pretrained(
            CHECKPOINT, dtype=engine_dtype(), local_files_only=True, trust_remote_code=False
        )
        self._pipeline.set_progress_bar_config(disable=True)

    def run_all(self, requests: Sequence[GenerationParams], batch_size: int = 1) -> float:
        """Return the seconds for all requests, in calls of `batch_size` equal ones."""
        start = time.perf_counter()
        for i in range(0, len(requests), batch_size):
            self._call(requests[i : i + batch_size])
        return time.perf_counter() - start

    def run_arrivals(self, arrivals: Arrivals) -> Latencies:
        """Serve requests in the order of their arrival; return the seconds from arrival to image."""
        start = time.perf_counter()
        latencies = []
        for request, arrival in zip(arrivals.requests, arrivals.seconds, strict=True):
            time.sleep(max(0.0, arrival - (time.perf_counter() - start)))
            self._call([request])
            latencies.append(time.perf_counter() - start - arrival)
        return latencies

    def _call(self, requests: Sequence[GenerationParams]) -> None:
        first = requests[0]
        seeds = [request.seed or 0 for request in requests]
        self._pipeline(
            [request.prompt for request in requests],
            width=first.width,
            height=first.height,
            num_inference_steps=first.num_inference_steps,
            max_sequence_length=first.max_sequence_length,
            generator=[self._torch.Generator("cpu").manual_seed(seed) for seed in seeds],
        )


class OurSide:
    """The engine with its default settings or the given ones."""

    def __init__(self, config: EngineConfig | None = None) -> None:
        from diffuserve import Engine

        self._engine = Engine.load(str(CHECKPOINT), device="cpu", config=config)

    def run_all(self, requests: Sequence[GenerationParams], batch_size: int = 0) -> float:
        """Submit all requests at once; return the seconds until all are finished."""
        start = time.perf_counter()
        self._engine.generate(requests)
        return time.perf_counter() - start

    def run_arrivals(self, arrivals: Arrivals) -> Latencies:
        """Submit each request when it arrives; return the seconds from arrival to image."""
        return asyncio.run(self._submit_all(arrivals))

    async def _submit_all(self, arrivals: Arrivals) -> Latencies:
        start = time.perf_counter()

        async def submit(request: GenerationParams, arrival: float) -> float:
            await asyncio.sleep(arrival - (time.perf_counter() - start))
            await self._engine.submit(request)
            return time.perf_counter() - start - arrival

        pairs = zip(arrivals.requests, arrivals.seconds, strict=True)
        return await asyncio.gather(*(submit(request, arrival) for request, arrival in pairs))

    def mean_requests_per_step(self) -> float:
        return self._engine.stats.mean_requests_per_step

    def describe(self) -> dict[str, str]:
        return shown(self._engine.describe())


class DeterministicSide(OurSide):
    """The engine in deterministic mode."""

    def __init__(self) -> None:
        super().__init__(EngineConfig(deterministic=True))


class RemoteSide:
    """A side in a child process; calls block until it responds."""

    def __init__(self, side: Callable[[], object]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(side, there), daemon=True)
        self._process.start()
        there.close()  # so that the end of the process ends the wait for it
        self._pipe.recv()  # loaded

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: object) -> Any:
            self._pipe.send((name, args))
            return self._pipe.recv()

        return call

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def stop(self) -> None:
        self._pipe.send(None)
        self._process.join()


def _serve(side: Callable[[], object], pipe: Connection) -> None:
    served = side()
    pipe.send("loaded")
    while (message := pipe.recv()) is not None:
        name, args = message
        pipe.send(getattr(served, name)(*args))
