"""Claims about models that are not in memory: loaded for each request, or at a cold start."""

import asyncio
import gc
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.claims.claim import Finding, ratio
from benchmarks.engine.engine import Runs, alternate
from benchmarks.shared import workloads
from benchmarks.shared.sides import OurSide, RemoteSide, StockSide
from benchmarks.start.cold_start import Node, engine, stock
from diffuserve.models.weights.read_ahead import read_into_cache

_SIDE = 128


class LoadingSide(StockSide):
    """Stock diffusers, whose pipeline is kept or loaded anew for each image."""

    def __init__(self) -> None:
        import diffusers.utils.logging
        import transformers.utils.logging

        for library in (diffusers, transformers):
            library.utils.logging.disable_progress_bar()
        super().__init__()

    def load_and_draw(self, seed: int) -> float:
        """Return the seconds of an image for which the pipeline is loaded, and dropped after it."""
        del self._pipeline
        gc.collect()
        start = time.perf_counter()
        super().__init__()
        self._call(workloads.equal(1, seed, _SIDE))
        return time.perf_counter() - start


def loading(rounds: int) -> Iterator[Finding]:
    """Compare loading for each image with keeping what was loaded, within one process of diffusers."""
    side = RemoteSide(LoadingSide)
    runs = alternate(
        rounds,
        {
            "loaded": side.load_and_draw,
            "kept": lambda seed: side.run_all(workloads.equal(1, seed, _SIDE)),
        },
    )
    side.stop()
    yield ratio(
        "loading", "stock diffusers in one process: loaded for each image, kept", runs["loaded"], runs["kept"]
    )


def starting(rounds: int) -> Iterator[Finding]:
    """Compare a process of stock diffusers for an image with ours, started, forked and resident."""
    resident = RemoteSide(OurSide)
    with tempfile.TemporaryDirectory() as folder:
        node = Node.of(workloads.CHECKPOINT.name, Path(folder) / "node")
        read_into_cache(node.files)
        runs = alternate(
            rounds,
            {
                "process": lambda _: stock(node.model)["first image"],
                "engine": lambda _: asyncio.run(engine(node.plain, is_forked=False))["first image"],
                "fork": lambda _: asyncio.run(engine(node.plain, is_forked=True))["first image"],
                "resident": lambda seed: resident.run_all(workloads.equal(1, seed, _SIDE)),
            },
        )
    resident.stop()
    yield from _compared(runs)


def _compared(runs: Runs) -> Iterator[Finding]:
    of_stock = runs["process"]
    kept = "a process of stock diffusers for each image, an engine that is kept"
    yield ratio("loading", kept, of_stock, runs["resident"])
    first = "first image of a process of stock diffusers"
    yield ratio("cold", f"{first}, of an engine process", of_stock, runs["engine"])
    yield ratio("cold", f"{first}, of an engine that is forked", of_stock, runs["fork"])
