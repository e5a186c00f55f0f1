"""A UNet of SDXL's layout in the engine, beside diffusers' pipeline: the same requests, run in turn.

    python -m benchmarks unet              # all scenarios, 5 rounds each
    python -m benchmarks unet --rounds 1 --only mixed

The checkpoint has random weights, which cost what trained ones cost. Requests differ in their steps, in
their guidance and in whether they have a negative prompt, which a batch of diffusers' pipeline has to share.
Figures and results are as in the engine's benchmark. Nothing else should run on the machine.
"""

import argparse
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.engine.engine import Figure, alternate, compare, format_row
from benchmarks.shared.places import OUT, RESULTS
from benchmarks.shared.report import read_conditions, write_report
from benchmarks.shared.sides import RemoteSide
from diffuserve.domain.models.description import shown
from diffuserve.domain.requests.params import GenerationParams

CHECKPOINT = OUT / "bench_unet" / "small-sdxl"
WIDTHS = (64, 128, 256)
NUM_REQUESTS = 16
SIDE = 128
STATIC_BATCHES = (2, 4, 8, 16)


class StockSide:
    """diffusers' `StableDiffusionXLPipeline`, as its documentation uses it, in the engine's dtype."""

    def __init__(self) -> None:
        import torch
        from diffusers import StableDiffusionXLPipeline

        from benchmarks.shared.default_dtype import engine_dtype

        self._torch = torch
        self._pipeline = StableDiffusionXLPipeline.from_pretrained(
            CHECKPOINT,
            torch_dtype=engine_dtype(),
            local_files_only=True,
            trust_remote_code=False,
            add_watermarker=False,
        )
        self._pipeline.set_progress_bar_config(disable=True)

    def run_all(self, requests: Sequence[GenerationParams], batch_size: int = 1) -> float:
        """Return the seconds for all requests, in calls of up to `batch_size` that may share one."""
        batches = [
            alike[start : start + batch_size]
            for alike in _alike(requests)
            for start in range(0, len(alike), batch_size)
        ]
        start = time.perf_counter()
        for batch in batches:
            self._call(batch)
        return time.perf_counter() - start

    def _call(self, batch: Sequence[GenerationParams]) -> None:
        first = batch[0]
        negative = [request.negative_prompt or "" for request in batch]
        self._pipeline(
            [request.prompt for request in batch],
            negative_prompt=None if first.negative_prompt is None else negative,
            width=first.width,
            height=first.height,
            num_inference_steps=first.num_inference_steps,
            guidance_scale=first.guidance_scale,
            generator=[self._torch.Generator("cpu").manual_seed(request.seed or 0) for request in batch],
        )


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

    def mean_requests_per_step(self) -> float:
        return self._engine.stats.mean_requests_per_step

    def describe(self) -> dict[str, str]:
        return shown(self._engine.describe())


def main() -> None:
    arguments = parse_arguments()
    write_checkpoint()
    stock, ours = RemoteSide(StockSide), RemoteSide(OurSide)
    figures: list[Figure] = []
    for name, scenario in SCENARIOS.items():
        if arguments.only in (None, name):
            for figure in scenario(stock, ours, arguments.rounds):
                figures.append(figure)
                print(format_row(figure), flush=True)
    conditions = read_conditions(("torch", "diffusers")) | {
        "checkpoint": f"random, of SDXL's layout, widths {WIDTHS}",
        **{f"engine {name}": value for name, value in ours.describe().items() if name != "model"},
        "mean requests per step": f"{ours.mean_requests_per_step():.1f}",
    }
    for side in (stock, ours):
        side.stop()
    if arguments.only is None:
        write_results(figures, conditions, arguments.label)


def run_mixed(stock: RemoteSide, ours: RemoteSide, rounds: int) -> list[Figure]:
    """Compare with diffusers one at a time, and with its best batches of requests that may share one."""
    sides: dict[str, Callable[[int], float]] = {
        f"stock in {size}s": _stock(stock, mixed, size) for size in STATIC_BATCHES
    }
    runs = alternate(
        rounds,
        {"stock": _stock(stock, mixed, 1), **sides, "ours": lambda seed: float(ours.run_all(mixed(seed)))},
    )
    best = min(sides, key=lambda name: statistics.median(runs[name]))
    scenario = f"{NUM_REQUESTS} of {SIDE} px, 4-12 steps, guidance 1 or 5, with or without negative prompt"
    return [
        compare(scenario, "stock, one at a time", "seconds", 1.5, runs, "stock"),
        compare(scenario, f"{best}, its best static batch", "seconds", 1.0, runs, best),
    ]


def run_equal(stock: RemoteSide, ours: RemoteSide, rounds: int) -> list[Figure]:
    """Compare where static batches are at their best: all requests are alike."""
    sides: dict[str, Callable[[int], float]] = {
        f"stock in {size}s": _stock(stock, equal, size) for size in STATIC_BATCHES
    }
    runs = alternate(rounds, {**sides, "ours": lambda seed: float(ours.run_all(equal(seed)))})
    best = min(sides, key=lambda name: statistics.median(runs[name]))
    scenario = f"{NUM_REQUESTS} equal, {SIDE} px, 8 steps, guidance 5"
    return [compare(scenario, f"{best}, its best static batch", "seconds", 1.0, runs, best)]


SCENARIOS = {"mixed": run_mixed, "equal": run_equal}


def mixed(seed: int) -> list[GenerationParams]:
    """Return requests that differ in steps, guidance and negative prompt; the seed changes prompts only."""
    shapes, words = random.Random("shapes"), random.Random(seed)
    return [
        _request(words, shapes.randint(4, 12), shapes.choice((1.0, 5.0)), shapes.choice((None, "blurry")))
        for _ in range(NUM_REQUESTS)
    ]


def equal(seed: int) -> list[GenerationParams]:
    words = random.Random(seed)
    return [_request(words, 8, 5.0, None) for _ in range(NUM_REQUESTS)]


def _request(words: random.Random, steps: int, guidance: float, negative: str | None) -> GenerationParams:
    return GenerationParams(
        prompt=f"a red circle {words.random()}",
        negative_prompt=negative if guidance > 1 else None,
        width=SIDE,
        height=SIDE,
        num_inference_steps=steps,
        guidance_scale=guidance,
        seed=words.randrange(2**31),
    )


def _stock(
    stock: RemoteSide, requests: Callable[[int], list[GenerationParams]], batch_size: int
) -> Callable[[int], float]:
    return lambda seed: float(stock.run_all(requests(seed), batch_size))


def _alike(requests: Sequence[GenerationParams]) -> list[list[GenerationParams]]:
    """Return the requests in groups that one call of diffusers' pipeline can take."""
    groups = defaultdict[object, list[GenerationParams]](list)
    for request in requests:
        has_negative = request.negative_prompt is not None
        groups[request.num_inference_steps, request.guidance_scale, has_negative].append(request)
    return list(groups.values())


def write_checkpoint() -> None:
    """Write the checkpoint unless an earlier run has done so."""
    import torch

    from diffuserve.testing.unet_checkpoints import write_unet_checkpoint

    if not (CHECKPOINT / "model_index.json").is_file():
        # As many transformer blocks by level as SDXL has, at a fifth of its widths.
        options: dict[str, Any] = {
            "block_out_channels": WIDTHS,
            "attention_head_dim": tuple(width // 32 for width in WIDTHS),
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            "transformer_layers_per_block": (1, 2, 10),
            "layers_per_block": 2,
            "sample_size": SIDE // 8,
        }
        write_unet_checkpoint(CHECKPOINT, kind="xl", dtype=torch.bfloat16, **options)


def write_results(figures: list[Figure], conditions: dict[str, str], label: str) -> None:
    header = "| scenario | beside | target | times better | single rounds | ours | theirs |"
    lines = ["# A UNet of SDXL's layout in the engine, beside diffusers", "", header, "|" + "---|" * 7]
    lines += [format_row(figure) for figure in figures]
    content = {"figures": [asdict(figure) for figure in figures]}
    write_report(RESULTS / f"unet_{label}", content, "\n".join(lines), conditions)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds a scenario (default 5)")
    parser.add_argument("--only", choices=list(SCENARIOS), help="one scenario; writes no result file")
    parser.add_argument("--label", default="cpu", help="names the machine in the result's file name")
    return parser.parse_args()


if __name__ == "__main__":
    main()
