"""Pipelines of diffusers in the engine, beside themselves: one by one, and in their best static batch.

    python -m benchmarks any-pipeline              # all models, 5 rounds each
    python -m benchmarks any-pipeline --rounds 1 --only sd3

Models have random weights, the layouts of real ones and a denoiser of width 256, so that a pass takes
milliseconds, as on a GPU. Eight requests differ in their steps. A static batch of the bare pipeline is one
call with the prompts of all requests of equal steps, as its API demands. Lone requests come one at a time and
show what the engine adds to each step. Figures and results are as in the engine's benchmark. Nothing else
should run on the machine, unless both sides have `--one-core` each: their CPU seconds are compared then.
"""

import argparse
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.engine.engine import Figure, Runs, alternate, compare, format_row
from benchmarks.shared.places import OUT, RESULTS
from benchmarks.shared.report import read_conditions, write_report
from benchmarks.shared.sides import RemoteSide
from diffuserve.domain.requests.params import GenerationParams

FOLDERS = OUT / "bench_any_pipeline"
STEPS = (4, 5, 6, 7, 4, 5, 6, 7)
LONE_STEPS = 10
TEXT_TOKENS = 64
_HEADS = {"num_attention_heads": 8, "attention_head_dim": 32}


@dataclass(frozen=True)
class Model:
    """A model: what its denoiser has of other widths than the tiny one, and what its requests ask for."""

    denoiser: dict[str, Any]
    side: int
    guidance_scale: float
    guidance_argument: str = "guidance_scale"
    num_frames: int | None = None


MODELS = {
    "sd3": Model({**_HEADS, "num_layers": 4, "caption_projection_dim": 256}, 128, 4.0),
    "z-image": Model(
        {"dim": 256, "n_heads": 8, "n_kv_heads": 8, "n_layers": 4, "axes_dims": [8, 12, 12]}, 128, 0.0
    ),
    "ltx": Model({**_HEADS, "num_layers": 4, "cross_attention_dim": 256}, 32, 3.0, num_frames=9),
    "qwen-image": Model(
        {**_HEADS, "num_layers": 4, "axes_dims_rope": (8, 12, 12)}, 128, 1.0, "true_cfg_scale"
    ),
}


class BareSide:
    """The pipelines of diffusers as their documentation uses them, in float32."""

    def __init__(self, has_one_core: bool) -> None:
        import torch
        from diffusers import DiffusionPipeline

        self._clock = _clock(has_one_core)
        if has_one_core:
            torch.set_num_threads(1)
        self._torch, self._kind = torch, DiffusionPipeline
        self._pipelines: dict[str, Any] = {}

    def run_all(self, name: str, requests: Sequence[GenerationParams], is_batched: bool = False) -> float:
        """Return the seconds for all requests, one by one, or those of equal steps in one call."""
        batches = _alike(requests) if is_batched else [[request] for request in requests]
        self._pipeline(name)
        start = self._clock()
        for batch in batches:
            self._call(name, batch)
        return self._clock() - start

    def _call(self, name: str, batch: Sequence[GenerationParams]) -> None:
        first, model = batch[0], MODELS[name]
        clip = {} if model.num_frames is None else {"num_frames": first.num_frames}
        self._pipeline(name)(
            prompt=[request.prompt for request in batch],
            width=first.width,
            height=first.height,
            num_inference_steps=first.num_inference_steps,
            generator=[self._torch.Generator("cpu").manual_seed(request.seed or 0) for request in batch],
            max_sequence_length=first.max_sequence_length,
            output_type="np",
            **{model.guidance_argument: first.guidance_scale},
            **clip,
        )

    def _pipeline(self, name: str) -> Any:
        if name not in self._pipelines:
            pipeline = self._kind.from_pretrained(
                str(FOLDERS / name), local_files_only=True, trust_remote_code=False
            )
            pipeline.set_progress_bar_config(disable=True)
            self._pipelines[name] = pipeline
        return self._pipelines[name]


class OurSide:
    """The engine with its default settings, in float32."""

    def __init__(self, has_one_core: bool) -> None:
        self._clock, self._num_threads = _clock(has_one_core), 1 if has_one_core else None
        self._engines: dict[str, Any] = {}

    def run_all(self, name: str, requests: Sequence[GenerationParams]) -> float:
        """Submit all requests at once; return the seconds until all are finished."""
        engine = self._engine(name)
        start = self._clock()
        engine.generate(requests)
        return self._clock() - start

    def rows(self, name: str) -> float:
        """Return the mean rows of a pass of the denoiser since the start."""
        rows = self._engine(name).denoiser_rows
        return statistics.mean(rows) if rows else 0.0

    def _engine(self, name: str) -> Any:
        if name not in self._engines:
            # Each engine has a pool of OpenMP threads, and two of them in a process sleep between operations.
            while self._engines:
                self._engines.popitem()[1].close()
            from diffuserve import Engine
            from diffuserve.engine.config import EngineConfig

            config = EngineConfig(num_threads=self._num_threads)
            engine = Engine.load(str(FOLDERS / name), device="cpu", dtype="fp32", config=config)
            engine.denoiser_rows = _counted_rows(engine.pipeline)  # type: ignore[attr-defined]
            self._engines[name] = engine
        return self._engines[name]


def main() -> None:
    arguments = parse_arguments()
    names = [arguments.only] if arguments.only else list(MODELS)
    for name in names:
        write_checkpoint(name)
    bare, ours = (RemoteSide(partial(side, arguments.one_core)) for side in (BareSide, OurSide))
    figures: list[Figure] = []
    conditions = read_conditions(("torch", "diffusers", "transformers")) | {
        "dtype": "float32",
        "seconds": "of one core's CPU on each side" if arguments.one_core else "of the clock, all cores",
        "checkpoints": "random, in the layouts of the real ones, denoisers of width 256 and 4 layers",
    }
    for name in names:
        for figure in run_model(name, bare, ours, arguments.rounds):
            figures.append(figure)
            print(format_row(figure), flush=True)
        conditions[f"rows of a pass, {name}"] = f"{ours.rows(name):.1f}"
    for side in (bare, ours):
        side.stop()
    if arguments.only is None:
        write_results(figures, conditions, arguments.label)


def run_model(name: str, bare: RemoteSide, ours: RemoteSide, rounds: int) -> list[Figure]:
    """Compare eight requests with both ways of the bare pipeline, and a lone one's steps."""
    runs = alternate(
        rounds,
        {
            "one by one": lambda seed: float(bare.run_all(name, mixed(name, seed))),
            "static": lambda seed: float(bare.run_all(name, mixed(name, seed), True)),
            "ours": lambda seed: float(ours.run_all(name, mixed(name, seed))),
        },
    )
    scenario = f"{name}: 8 requests of 4-7 steps"
    return [
        compare(scenario, "bare, one by one", "seconds", 1.0, runs, "one by one"),
        compare(scenario, "bare, equal steps in one call", "seconds", 1.0, runs, "static"),
        compare(
            f"{name}: a lone step", "bare", "milliseconds", 0.996, _lone(name, bare, ours, rounds), "bare"
        ),
    ]


def _lone(name: str, bare: RemoteSide, ours: RemoteSide, rounds: int) -> Runs:
    """Return the milliseconds of a step: the difference of requests that differ in their steps alone."""
    short, long = 2, 2 + LONE_STEPS

    def step(side: RemoteSide, seed: int) -> float:
        seconds = [
            float(side.run_all(name, [replace(mixed(name, seed)[0], num_inference_steps=steps)]))
            for steps in (short, long)
        ]
        return 1000 * (seconds[1] - seconds[0]) / LONE_STEPS

    return alternate(
        3 * rounds, {"bare": lambda seed: step(bare, seed), "ours": lambda seed: step(ours, seed)}
    )


def mixed(name: str, seed: int) -> list[GenerationParams]:
    """Return requests that differ in their steps; the seed changes noise and prompts of one length."""
    words, model = random.Random(seed), MODELS[name]
    return [
        GenerationParams(
            prompt=f"a red circle {words.randrange(10**6):06}",
            width=model.side,
            height=model.side,
            num_frames=model.num_frames,
            num_inference_steps=steps,
            max_sequence_length=TEXT_TOKENS,
            guidance_scale=model.guidance_scale,
            seed=words.randrange(2**31),
        )
        for steps in STEPS
    ]


def _clock(has_one_core: bool) -> Callable[[], float]:
    return time.process_time if has_one_core else time.perf_counter


def _alike(requests: Sequence[GenerationParams]) -> list[list[GenerationParams]]:
    groups = defaultdict[object, list[GenerationParams]](list)
    for request in requests:
        groups[request.num_inference_steps].append(request)
    return list(groups.values())


def _counted_rows(pipeline: Any) -> list[int]:
    """Return a list to which the rows of each pass of the denoiser will be added."""
    rows: list[int] = []

    def on_pass(component: str, count: int) -> None:
        if component == "transformer":
            rows.append(count)

    pipeline.passes._on_pass = on_pass
    return rows


def write_checkpoint(name: str) -> Path:
    """Write a model unless an earlier run has done so: the tests' tiny one with a wider denoiser."""
    folder = FOLDERS / name
    if not (folder / "model_index.json").is_file():
        import torch

        from support.tiny_pipelines import tiny_pipeline

        pipeline = tiny_pipeline(name)
        tiny = pipeline.transformer
        torch.manual_seed(0)
        pipeline.transformer = type(tiny).from_config({**tiny.config, **MODELS[name].denoiser})
        pipeline.save_pretrained(folder)
    return folder


def write_results(figures: list[Figure], conditions: dict[str, str], label: str) -> None:
    header = "| scenario | beside | target | times better | single rounds | ours | theirs |"
    lines = ["# Pipelines of diffusers in the engine, beside themselves", "", header, "|" + "---|" * 7]
    lines += [format_row(figure) for figure in figures]
    content = {"figures": [asdict(figure) for figure in figures]}
    write_report(RESULTS / f"any-pipeline_{label}", content, "\n".join(lines), conditions)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds a model (default 5)")
    parser.add_argument("--only", choices=list(MODELS), help="one model; writes no result file")
    parser.add_argument("--one-core", action="store_true", help="CPU seconds of one core on each side")
    parser.add_argument("--label", default="cpu", help="names the machine in the result's file name")
    return parser.parse_args()


if __name__ == "__main__":
    main()
