"""Packed image families in the engine beside diffusers: the same requests, one by one and in static batches.

    python -m benchmarks packed-families                    # all families, in each dtype, 3 rounds each
    python -m benchmarks packed-families --rounds 1 --only z-image

Models have random weights, the layouts of real ones, and transformers of width 256. Requests differ in size,
in steps, and in guidance where a model has it; a static batch of diffusers' pipeline is a call with all that
agree in these. Equal requests are where such batches are at their best. A lone request shows what the engine
adds. Figures and results are as in the engine's benchmark: in float32, and where the CPU multiplies bf16
fast, in that too. Nothing else should run on the machine, unless both sides have `--one-core` each: their
CPU seconds are compared then.
"""

import argparse
import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.engine.engine import Figure, alternate, compare, format_row
from benchmarks.shared.pipeline_sides import BarePipelines, Models, OurEngines
from benchmarks.shared.places import OUT, RESULTS
from benchmarks.shared.report import read_conditions, write_counted, write_report
from benchmarks.shared.sides import RemoteSide
from diffuserve.domain.requests.params import GenerationParams

FOLDER = OUT / "bench_packed_families"
NUM_REQUESTS = 16
NUM_LONE = 4
STATIC_BATCHES = (8, 16)
SIZES = ((64, 64), (128, 96), (128, 128), (192, 128))
TEXT_TOKENS = 64
_HEADS: dict[str, Any] = {"num_attention_heads": 8, "attention_head_dim": 32}


@dataclass(frozen=True)
class Guidance:
    """A request's guidance, and its negative prompt."""

    scale: float | None
    negative_prompt: str | None = None


_NONE, _TRUE = Guidance(None), Guidance(4.0, "blurry")


@dataclass(frozen=True)
class Family:
    """How a family's checkpoint is written, and which guidance its requests have in turn.

    `argument` is what diffusers' call names the scale.
    """

    write: Callable[[Path], object]
    guidance: tuple[Guidance, ...] = (_NONE,)
    argument: str | None = None


def _write_flux(folder: Path) -> None:
    from diffuserve.testing.checkpoints import write_flux_checkpoint

    layers = {"num_layers": 2, "num_single_layers": 4, "axes_dims_rope": (8, 12, 12)}
    write_flux_checkpoint(folder, transformer={**_HEADS, **layers})


def _write_klein(folder: Path) -> None:
    from diffuserve.testing.flux2_checkpoints import write_flux2_checkpoint

    layers = {"num_layers": 2, "num_single_layers": 4, "axes_dims_rope": (8, 8, 8, 8)}
    write_flux2_checkpoint(folder, transformer={**_HEADS, **layers})


def _write_z_image(folder: Path) -> None:
    from diffuserve.testing.z_image_checkpoints import write_z_image_checkpoint

    heads: dict[str, Any] = {"dim": 256, "n_heads": 8, "n_kv_heads": 8, "axes_dims": [8, 12, 12]}
    write_z_image_checkpoint(folder, **heads, n_layers=4)


def _write_qwen_image(folder: Path) -> None:
    from diffuserve.testing.qwen_image_checkpoints import write_qwen_image_checkpoint

    write_qwen_image_checkpoint(folder, **_HEADS, num_layers=4, axes_dims_rope=(8, 12, 12))


FAMILIES: Mapping[str, Family] = {
    "flux": Family(_write_flux),
    "klein": Family(_write_klein),
    "z-image": Family(_write_z_image, (Guidance(0.0), _TRUE), "guidance_scale"),
    "qwen-image": Family(_write_qwen_image, (Guidance(1.0), _TRUE), "true_cfg_scale"),
}


@dataclass(frozen=True)
class Bench:
    """A family's two sides, in one dtype."""

    name: str
    dtype: str
    bare: RemoteSide
    ours: RemoteSide
    rounds: int

    def figures(self) -> list[Figure]:
        return [*self._mixed(), self._equal(), self._lone()]

    def _mixed(self) -> list[Figure]:
        runs = alternate(
            self.rounds,
            {
                "one by one": lambda seed: float(self.bare.run_all(self.name, mixed(self.name, seed))),
                "static": self._static(mixed, NUM_REQUESTS),
                "ours": lambda seed: float(self.ours.run_all(self.name, mixed(self.name, seed))),
            },
        )
        scenario = f"{self.name}, {self.dtype}: {NUM_REQUESTS} mixed, 64-192 px, 4-8 steps"
        return [
            compare(scenario, "stock, one at a time", "seconds", 2.0, runs, "one by one"),
            compare(scenario, "stock, alike in one call", "seconds", 1.2, runs, "static"),
        ]

    def _equal(self) -> Figure:
        sides = {f"stock in {size}s": self._static(equal, size) for size in STATIC_BATCHES}
        ours = {"ours": lambda seed: float(self.ours.run_all(self.name, equal(self.name, seed)))}
        runs = alternate(self.rounds, {**sides, **ours})
        best = min(sides, key=lambda side: statistics.median(runs[side]))
        scenario = f"{self.name}, {self.dtype}: {NUM_REQUESTS} equal, 128 px, 6 steps"
        return compare(scenario, f"{best}, its best", "seconds", 1.0, runs, best)

    def _lone(self) -> Figure:
        def in_turn(side: RemoteSide) -> Callable[[int], float]:
            return lambda seed: (
                sum(side.run_all(self.name, [request]) for request in equal(self.name, seed)[:NUM_LONE])
                / NUM_LONE
            )

        runs = alternate(self.rounds, {"stock": in_turn(self.bare), "ours": in_turn(self.ours)})
        return compare(f"{self.name}, {self.dtype}: one alone", "stock", "seconds", 1.0, runs, "stock")

    def _static(
        self, load: Callable[[str, int], list[GenerationParams]], batch_size: int
    ) -> Callable[[int], float]:
        return lambda seed: float(self.bare.run_all(self.name, load(self.name, seed), batch_size))


def mixed(name: str, seed: int) -> list[GenerationParams]:
    """Return requests of other sizes, steps and guidance; the seed changes their prompts and noise alone."""
    shapes = random.Random("shapes")
    return [
        replace(
            request,
            width=width,
            height=height,
            num_inference_steps=steps,
            guidance_scale=guidance.scale,
            negative_prompt=guidance.negative_prompt,
        )
        for request in equal(name, seed)
        for (width, height), steps, guidance in [
            (shapes.choice(SIZES), shapes.randint(4, 8), shapes.choice(FAMILIES[name].guidance))
        ]
    ]


def equal(name: str, seed: int) -> list[GenerationParams]:
    """Return requests of one size with the same steps and guidance."""
    words = random.Random(seed)
    guidance = FAMILIES[name].guidance[-1]
    return [
        GenerationParams(
            prompt=f"a red circle {words.randrange(10**6):06}",
            negative_prompt=guidance.negative_prompt,
            width=128,
            height=128,
            num_inference_steps=6,
            guidance_scale=guidance.scale,
            max_sequence_length=TEXT_TOKENS,
            seed=words.randrange(2**31),
        )
        for _ in range(NUM_REQUESTS)
    ]


def main() -> None:
    arguments = parse_arguments()
    names = [arguments.only] if arguments.only else list(FAMILIES)
    for name in names:
        write_checkpoint(name)
    figures: list[Figure] = []
    conditions = read_conditions(("torch", "diffusers", "transformers")) | {
        "seconds": "of one core's CPU on each side" if arguments.one_core else "of the clock, all cores",
        "checkpoints": "random, in the layouts of the real ones, transformers of width 256",
    }
    for dtype in dtypes():
        figures += run_dtype(dtype, names, arguments, conditions)
    if arguments.only is None:
        write_results(figures, conditions, arguments.label, arguments.one_core)


def dtypes() -> list[str]:
    """Return float32, and bf16 if the engine chooses it on this CPU."""
    import torch

    from benchmarks.shared.default_dtype import engine_dtype

    return ["fp32", "bf16"] if engine_dtype() is torch.bfloat16 else ["fp32"]


def run_dtype(
    dtype: str, names: list[str], arguments: argparse.Namespace, conditions: dict[str, str]
) -> list[Figure]:
    guidance = {name: family.argument for name, family in FAMILIES.items() if family.argument is not None}
    models = Models(FOLDER, guidance, dtype, arguments.one_core)
    bare, ours = (RemoteSide(partial(side, models)) for side in (BarePipelines, OurEngines))
    figures: list[Figure] = []
    for name in names:
        for figure in Bench(name, dtype, bare, ours, arguments.rounds).figures():
            figures.append(figure)
            print(format_row(figure), flush=True)
        conditions[f"mean requests of a step, {name}, {dtype}"] = f"{ours.requests_per_step(name):.1f}"
    for side in (bare, ours):
        side.stop()
    return figures


def write_checkpoint(name: str) -> None:
    """Write a model unless an earlier run has done so."""
    if not (FOLDER / name / "model_index.json").is_file():
        FAMILIES[name].write(FOLDER / name)


def write_results(
    figures: list[Figure], conditions: dict[str, Any], label: str, is_of_one_core: bool
) -> None:
    header = "| scenario | beside | target | times better | single rounds | ours | theirs |"
    lines = ["# Packed image families beside diffusers", "", header, "|" + "---|" * 7]
    lines += [format_row(figure) for figure in figures]
    content = {"figures": [asdict(figure) for figure in figures]}
    write = write_counted if is_of_one_core else write_report
    write(RESULTS / f"packed-families_{label}", content, "\n".join(lines), conditions)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds a scenario (default 3)")
    parser.add_argument("--only", choices=list(FAMILIES), help="one family; writes no result file")
    parser.add_argument("--one-core", action="store_true", help="CPU seconds of one core on each side")
    parser.add_argument("--label", default="cpu", help="names the machine in the result's file name")
    return parser.parse_args()


if __name__ == "__main__":
    main()
