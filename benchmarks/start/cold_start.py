"""A benchmark of cold starts: from the start of a process to its first image, beside stock diffusers.

    python -m benchmarks cold-start                     # make bench NAME=cold-start
    python -m benchmarks cold-start --quick

The sides take turns: diffusers' `FluxPipeline`; `diffuserve generate`; an engine process as an agent starts
it; and a second one on the node, which is forked from the zygote; engines once with the model's own files,
once with a prepared copy. Each draws the bundled model's size, and that of a random FLUX checkpoint of
1.6 GB, with weights in the page cache and without (those of Python's packages always are). Beside it: the
rate at which weights are read from the disk, and how much of its memory the second of two engines shares once
both have drawn an image. Nothing else should run on the machine.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import torch

from benchmarks.control.processes import DIFFUSERVE
from benchmarks.shared.places import RESULTS
from benchmarks.shared.report import read_conditions, write_report
from benchmarks.start.marks import Marks, medians, read_marks, waterfall
from diffuserve.agent.config import WorkerConfig
from diffuserve.agent.engines.engine_link import EngineLink
from diffuserve.agent.engines.engine_starter import EngineStarter
from diffuserve.domain.models.parts import ALL_PARTS
from diffuserve.engine_process.model.prepared_model import load_options
from diffuserve.models.folders.folder import find_local_model
from diffuserve.models.registry import weight_files
from diffuserve.models.weights.read_ahead import read_into_cache
from diffuserve.modelstore.config import ModelStoreConfig
from diffuserve.modelstore.prepared_copies import make_copy
from diffuserve.protocol.config import EngineProcessConfig, ImageOptions
from diffuserve.protocol.messages import (
    AddJob,
    EngineLoading,
    EngineReady,
    EngineRefused,
    JobFailed,
    JobFinished,
    ModelAnnounced,
)
from diffuserve.testing.checkpoints import write_flux_checkpoint

_PACKAGES = ("torch", "diffusers", "transformers")
_PROMPT = "a red circle on a white background"
_SIZE, _STEPS = 128, 4
_TEXT_TOKENS = 32  # of the prompt, the same on all sides: they are half of a small image's work
_STOCK = (sys.executable, "-m", "benchmarks.start.stock")
_TINY, _RANDOM = "tiny-flux", "random"
_BIG = {
    "num_attention_heads": 12,
    "attention_head_dim": 128,
    "num_layers": 6,
    "num_single_layers": 8,
    "axes_dims_rope": (16, 56, 56),
}
_LOADED = {"weights": "imports", "image filter": "weights", "warm-up": "image filter"}
"""What is done when an engine says that the next phase begins."""
_BLOCK = 8 << 20

Side = Callable[[], Marks]


def main() -> None:
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        names = [_TINY] if arguments.quick else [_TINY, _RANDOM]
        models = {name: make_model(name, Path(folder)) for name in names}
        rounds = 1 if arguments.quick else arguments.rounds
        nodes = {name: Node.of(model, Path(folder) / f"{name} on a node") for name, model in models.items()}
        found = {name: measure(node, rounds) for name, node in nodes.items()}
        shares = {name: measure_sharing(node) for name, node in nodes.items()}
        large = {name: model for name, model in models.items() if name == _RANDOM}
        rates = {name: read_rates(model, rounds) for name, model in large.items()}
    text = report(found, shares, rates)
    print(text)
    if not arguments.quick:
        content = {"marks": found, "shared_share": shares, "bytes_per_second": rates}
        write_report(RESULTS / f"cold_start_{arguments.label}", content, text, read_conditions(_PACKAGES))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round of the bundled model, and no result")
    parser.add_argument("--folder", type=Path, help="where the random checkpoint is written; on a real disk")
    parser.add_argument("--label", default="cpu", help="names the machine in the result's file name")
    return parser.parse_args()


def make_model(name: str, folder: Path) -> str:
    """Return the name of the bundled model, or the folder of a new random one."""
    if name == _TINY:
        return name
    return str(write_flux_checkpoint(folder / name, dtype=torch.bfloat16, transformer=_BIG))


@dataclass(frozen=True)
class Node:
    """A model on a node, with an empty cache folder and with one that holds its prepared copy."""

    model: str
    plain: EngineProcessConfig
    prepared: EngineProcessConfig
    copy: Path

    @classmethod
    def of(cls, model: str, folder: Path) -> "Node":
        """Prepare a copy of the model in a folder."""
        images = ImageOptions(image_filter="none")
        plain, prepared = (
            EngineProcessConfig(
                model=model, images=images, stored=ModelStoreConfig(model_cache=folder / cache)
            )
            for cache in ("plain", "prepared")
        )
        return cls(model, plain, prepared, make_copy(load_options(prepared), prepared.stored).folder)

    @property
    def files(self) -> list[Path]:
        """All files that any side reads."""
        return [*weights(self.model), *sorted(self.copy.iterdir())]


Found = dict[str, dict[str, list[Marks]]]


def measure(node: Node, rounds: int) -> Found:
    """Return the marks of every side, by the state of the page cache, in each round but the first."""
    sides: dict[str, Side] = {
        "stock diffusers": lambda: stock(node.model),
        "diffuserve generate": lambda: generate(node.plain),
        "engine process": lambda: asyncio.run(engine(node.plain, is_forked=False)),
        "engine process, prepared copy": lambda: asyncio.run(engine(node.prepared, is_forked=False)),
        "second engine on the node": lambda: asyncio.run(engine(node.plain, is_forked=True)),
        "second engine, prepared copy": lambda: asyncio.run(engine(node.prepared, is_forked=True)),
    }
    found: Found = {cache: {side: [] for side in sides} for cache in ("warm", "cold")}
    for number in range(rounds + 1):
        for cache, by_side in found.items():
            for side, play in sides.items():
                if cache == "cold":
                    forget(node.files)
                else:
                    read_into_cache(node.files)
                marks = play()
                print(
                    f"{node.model} {cache} {side}: {marks['first image']:.2f} s", file=sys.stderr, flush=True
                )
                if number:
                    by_side[side].append(marks)
    return found


def weights(model: str) -> list[Path]:
    return weight_files(model, ALL_PARTS)


def forget(files: Sequence[Path]) -> None:
    """Drop files from the page cache, as far as no process has them mapped."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def stock(model: str) -> Marks:
    folder = find_local_model(model)
    assert folder is not None
    start = time.monotonic()
    command = (
        *_STOCK,
        str(folder.path),
        _PROMPT,
        *map(str, (_SIZE, _STEPS, _TEXT_TOKENS)),
    )
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return read_marks(done.stdout.splitlines(), start)


def generate(config: EngineProcessConfig) -> Marks:
    """Play the command, whose lines tell when the model is loaded and when its image is written."""
    start, marks = time.monotonic(), Marks()
    with tempfile.TemporaryDirectory() as folder:
        cache = ("--model-cache", str(config.stored.model_cache))
        command = (*DIFFUSERVE, "generate", _PROMPT, "--model", config.model, *cache, "-o", folder)
        size = ("--size", f"{_SIZE}x{_SIZE}", "--steps", str(_STEPS))
        text = ("--max-sequence-length", str(_TEXT_TOKENS))
        with subprocess.Popen([*command, *size, *text], stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if "token_budget" in line:
                    marks["loaded"] = time.monotonic() - start
        assert process.returncode == 0
    return marks | {"first image": time.monotonic() - start}


async def engine(config: EngineProcessConfig, is_forked: bool) -> Marks:
    """Start an engine as an agent does, by fork if a zygote `is_forked`, and have it draw an image."""
    starter = EngineStarter(WorkerConfig(server="", engine_process=config))
    if is_forked:
        await starter.prepare_zygote()
    start = time.monotonic()
    link = await EngineLink.start(partial(starter.start, config))
    try:
        return await _first_image(link, start)
    finally:
        await link.close()
        await starter.close()


async def _first_image(link: EngineLink, start: float) -> Marks:
    marks = Marks()
    async for message in link.messages():
        now = time.monotonic() - start
        match message:
            case ModelAnnounced():
                marks["config"] = now
            case EngineLoading():
                if message.phase in _LOADED:
                    marks.setdefault(_LOADED[message.phase], now)
            case EngineReady():
                marks["warm-up"] = now
                size = {"width": _SIZE, "height": _SIZE, "num_inference_steps": _STEPS}
                job = {"prompt": _PROMPT, "seed": 1, "max_sequence_length": _TEXT_TOKENS, **size}
                link.send(AddJob(attempt="first", input=job, folder=str(link.job_folder("first"))))
            case JobFinished():
                marks["first image"] = now
                return marks
            case EngineRefused() | JobFailed():
                raise RuntimeError(str(message))
    raise RuntimeError("the engine ended before its first image")


def measure_sharing(node: Node) -> dict[str, float]:
    """Return the shared part of a second engine's memory, with the model's own files and with the copy."""
    ways = {"own files": node.plain, "prepared copy": node.prepared}
    return {way: asyncio.run(_second_share(config)) for way, config in ways.items()}


async def _second_share(config: EngineProcessConfig) -> float:
    """Have two engines of one zygote draw an image, and return what the second shares."""
    starter = EngineStarter(WorkerConfig(server="", engine_process=config))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(starter.close)
        await starter.prepare_zygote()
        for _ in range(2):
            link = await EngineLink.start(partial(starter.start, config))
            stack.push_async_callback(link.close)
            await _first_image(link, time.monotonic())
        return shared_share(link.pid)


def shared_share(pid: int) -> float:
    """Return the part of a process's resident memory that others have mapped too."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kilobytes = {line.split()[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}
    return (kilobytes["Shared_Clean:"] + kilobytes["Shared_Dirty:"]) / kilobytes["Rss:"]


def read_rates(model: str, rounds: int) -> dict[str, list[float]]:
    """Return the bytes a second of a cold read as an engine starts it, and of the disk by 1 and 4 threads."""
    files = weights(model)
    ways: dict[str, Callable[[], object]] = {
        "as an engine reads": lambda: read_into_cache(files),
        "disk, 1 thread": lambda: read_raw(files, 1),
        "disk, 4 threads": lambda: read_raw(files, 4),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, read in ways.items():
            forget(files)
            start = time.monotonic()
            read()
            rates[name].append(sum(file.stat().st_size for file in files) / (time.monotonic() - start))
    return rates


def read_raw(files: Sequence[Path], num_threads: int) -> None:
    """Read files in blocks of 8 MiB, each thread every so many."""

    def read(thread: int) -> None:
        buffer = bytearray(_BLOCK)
        for file in files:
            with file.open("rb", buffering=0) as opened:
                for offset in range(thread * _BLOCK, file.stat().st_size, num_threads * _BLOCK):
                    os.preadv(opened.fileno(), [buffer], offset)

    with ThreadPoolExecutor(num_threads) as pool:
        list(pool.map(read, range(num_threads)))


def report(
    found: dict[str, Found],
    shares: dict[str, dict[str, float]],
    rates: dict[str, dict[str, list[float]]],
) -> str:
    """Return the waterfalls of medians, with each side's ratio to stock."""
    lines = ["# Cold starts", "", "Medians, in seconds from the start of a process to its first image."]
    for model, by_cache in found.items():
        for cache, by_side in by_cache.items():
            lines += ["", f"## {model}, page cache {cache}"]
            of_stock = [run["first image"] for run in by_side["stock diffusers"]]
            for side, runs in by_side.items():
                marks = medians(runs)
                ratios = [base / run["first image"] for base, run in zip(of_stock, runs, strict=True)]
                times = f"{median(ratios):.1f} times as fast as stock ({min(ratios):.1f}–{max(ratios):.1f})"
                lines += ["", f"### {side}: {times}", "", "```text", *waterfall(marks), "```"]
    lines += ["", "## What a second engine shares of its memory, both having drawn an image", ""]
    for model, by_files in shares.items():
        lines += [f"- {model}, {way}: {share:.0%}" for way, share in by_files.items()]
    for model, by_way in rates.items():
        lines += ["", f"## Reading {model} from the disk", ""]
        lines += [f"- {way}: {median(values) / 1e9:.2f} GB/s" for way, values in by_way.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
