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
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.engine.engine import Figure, Runs, alternate, compare, format_row
from benchmarks.shared.pipeline_sides import BarePipelines, Models, OurEngines
from benchmarks.shared.places import OUT, RESULTS
from benchmarks.shared.report import read_conditions, write_counted, write_report
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
    num_frames: int | None = None


MODELS = {
    "sd3": Model({**_HEADS, "num_layers": 4, "caption_projection_dim": 256}, 128, 4.0),
    "ltx": Model({**_HEADS, "num_layers": 4, "cross_attention_dim": 256}, 32, 3.0, num_frames=9),
}


class OurSide(OurEngines):
    """The engine with its default settings, which counts the rows of its passes."""

    def rows(self, name: str) -> float:
        """Return the mean rows of a pass of the denoiser since the start."""
        rows = self.engine(name).denoiser_rows
        return statistics.mean(rows) if rows else 0.0

    def loaded(self, engine: Any) -> Any:
        engine.denoiser_rows = _counted_rows(engine.pipeline)
        return engine


def main() -> None:
    arguments = parse_arguments()
    names = [arguments.only] if arguments.only else list(MODELS)
    for name in names:
        write_checkpoint(name)
    models = Models(FOLDERS, dict.fromkeys(MODELS, "guidance_scale"), has_one_core=arguments.one_core)
    bare, ours = (RemoteSide(partial(side, models)) for side in (BarePipelines, OurSide))
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
        write_results(figures, conditions, arguments.label, arguments.one_core)


def run_model(name: str, bare: RemoteSide, ours: RemoteSide, rounds: int) -> list[Figure]:
    """Compare eight requests with both ways of the bare pipeline, and a lone one's steps."""
    runs = alternate(
        rounds,
        {
            "one by one": lambda seed: float(bare.run_all(name, mixed(name, seed))),
            "static": lambda seed: float(bare.run_all(name, mixed(name, seed), len(STEPS))),
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


def write_results(
    figures: list[Figure], conditions: dict[str, str], label: str, is_of_one_core: bool
) -> None:
    header = "| scenario | beside | target | times better | single rounds | ours | theirs |"
    lines = ["# Pipelines of diffusers in the engine, beside themselves", "", header, "|" + "---|" * 7]
    lines += [format_row(figure) for figure in figures]
    content = {"figures": [asdict(figure) for figure in figures]}
    write = write_counted if is_of_one_core else write_report
    write(RESULTS / f"any-pipeline_{label}", content, "\n".join(lines), conditions)


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
