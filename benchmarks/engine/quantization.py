"""Measures what quantized weights cost and give: bytes, seconds, and nearness to images of the own weights.

    python -m benchmarks quantization --only quality   # holds on a busy machine too
    python -m benchmarks quantization --only speed     # nothing else should run on the machine

Quality: the bundled models draw the same prompts and seeds in each kind, each prompts such as it was trained
with, of things that it was not trained on; adherence is how often the checker of `training/tiny_flux` finds
everything right in an image of tiny-flux. Speed: seconds to load, and
of a step, of the same models; and of one product at the widths of tiny-flux and of FLUX.1, in processor time
of one thread, kinds in turn.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from benchmarks.shared.default_dtype import engine_dtype
from benchmarks.shared.places import RESULTS, ROOT
from benchmarks.shared.report import markdown_table, read_conditions, write_counted, write_report
from diffuserve import Engine, GenerationParams
from diffuserve.domain.models.quantization import Quantization
from diffuserve.models.layers.linear import Linear
from diffuserve.models.layers.quantized.quantized_linear import QuantizedLinear

sys.path.insert(0, str(ROOT / "training" / "tiny_flux"))
sys.path.insert(0, str(ROOT / "training" / "tiny_video"))
from checker import judge
from motions import draw_clip_scene
from scenes import Scene, caption, draw_scene
from words import clip_caption

MODELS = ("tiny-flux", "tiny-sd", "tiny-video")
FLUX, _, VIDEO = MODELS
_NUM_UNCHECKED = 24  # prompts of models whose images no checker here can judge
_BATCH = 16
_MAX_DECIBELS = 80.0  # of equal images
_WIDTHS = ((192, 768), (768, 192), (3072, 3072), (3072, 12288), (12288, 3072))
_ROWS = (64, 256, 1024)
_PRODUCT_ROUNDS = 5
_PACKAGES = ("torch",)

Row = dict[str, str]
Frames = list[np.ndarray]


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(0)
    if arguments.only != "speed":
        rows = [row for model in arguments.models for row in quality(model, arguments.num_prompts)]
        report("quality", {"Images beside those of the own weights": rows}, arguments.label)
    if arguments.only != "quality":
        rows = [row for model in arguments.models for row in speed(model, arguments.rounds)]
        tables = {"Seconds to load, and of a step": rows, "One product, one thread": products()}
        report("speed", tables, arguments.label)


def quality(model: str, num_prompts: int) -> list[Row]:
    """Return a row for each kind, of a model's transformer and text encoders."""
    scenes = held_out(num_prompts if model == FLUX else min(num_prompts, _NUM_UNCHECKED))
    prompts = motions(len(scenes)) if model == VIDEO else still(scenes)
    own: list[Frames] = []
    rows = []
    for kind in Quantization:
        with Engine.load(model, device="cpu", quantization=kind) as engine:
            num_bytes = weight_bytes(engine.pipeline)
            drawn = draw(engine, requests(prompts))
        own = own or drawn
        found = [decibels(*pair) for pair in zip(drawn, own, strict=True)]
        row = {
            "model": model,
            "prompts": str(len(scenes)),
            "kind": kind.value,
            "MB of weights": f"{num_bytes / 1e6:.2f}",
        }
        if kind is not Quantization.NONE:
            row |= {"PSNR mean": f"{np.mean(found):.1f}", "PSNR p10": f"{np.percentile(found, 10):.1f}"}
        rows.append(row | (adherence(drawn, scenes) if model == FLUX else {}))
        print(rows[-1], flush=True)
    return rows


def held_out(count: int) -> list[Scene]:
    """Return scenes that no model was trained on, with one object and with two in turn."""
    chance = random.Random("held out")
    return [draw_scene(chance, num_things=1 + index % 2, held_out=True) for index in range(count)]


def still(scenes: Sequence[Scene]) -> list[str]:
    """Return a caption of each scene."""
    return [caption(scene, random.Random(index)) for index, scene in enumerate(scenes)]


def motions(count: int) -> list[str]:
    """Return captions of clips that no model was trained on, every third with two objects."""
    chance = random.Random("held out")
    scenes = [draw_clip_scene(chance, index % 3 == 2, held_out=True) for index in range(count)]
    return [clip_caption(scene, random.Random(index)) for index, scene in enumerate(scenes)]


def requests(prompts: Sequence[str]) -> list[GenerationParams]:
    """Return a request for each prompt."""
    return [GenerationParams(prompt=prompt, seed=index) for index, prompt in enumerate(prompts)]


def draw(engine: Engine, wanted: Sequence[GenerationParams]) -> list[Frames]:
    drawn: list[Frames] = []
    for start in range(0, len(wanted), _BATCH):
        results = engine.generate(wanted[start : start + _BATCH])
        drawn += [[np.asarray(frame) for frame in result.frames[0]] for result in results]
    return drawn


def decibels(frames: Frames, others: Frames) -> float:
    pairs = zip(frames, others, strict=True)
    error = np.mean([np.square(frame.astype(np.float64) - other).mean() for frame, other in pairs])
    return min(_MAX_DECIBELS, 10 * np.log10(255**2 / error)) if error else _MAX_DECIBELS


def adherence(drawn: Sequence[Frames], scenes: Sequence[Scene]) -> Row:
    """Return how many of a hundred images show everything that was asked for, with one object and two."""
    right: dict[int, list[bool]] = {1: [], 2: []}
    for frames, scene in zip(drawn, scenes, strict=True):
        right[len(scene.things)].append(bool(judge(frames[0], scene).everything))
    names = {1: "right %, one object", 2: "two objects"}
    return {names[number]: f"{100 * statistics.mean(found):.1f}" for number, found in right.items()}


def weight_bytes(pipeline: object) -> int:
    """Return the bytes of all modules of a pipeline, the autoencoder's too."""
    seen: dict[int, int] = {}

    def collect(value: object) -> None:
        if isinstance(value, nn.Module):
            seen.update({id(tensor): tensor.nbytes for tensor in value.parameters() if not tensor.is_meta})
        elif isinstance(value, list):
            for each in value:
                collect(each)
        elif type(value).__module__.startswith("diffuserve.models") and hasattr(value, "__dict__"):
            for each in vars(value).values():
                collect(each)

    collect(pipeline)
    return sum(seen.values())


def speed(model: str, rounds: int) -> list[Row]:
    """Return a row for each kind: medians of loads in turn, and of requests alone and eight at a time."""
    loads: dict[Quantization, list[float]] = {kind: [] for kind in Quantization}
    steps: dict[tuple[Quantization, int], list[float]] = {}
    for _ in range(rounds):
        for kind in Quantization:
            start = time.perf_counter()
            with Engine.load(model, device="cpu", quantization=kind) as engine:
                loads[kind].append(time.perf_counter() - start)
                for count in (1, 8):
                    steps.setdefault((kind, count), []).append(step_seconds(engine, count))
    return [
        {
            "model": model,
            "kind": kind.value,
            "load s": f"{statistics.median(loads[kind]):.2f}",
            "step s, alone": f"{statistics.median(steps[kind, 1]):.4f}",
            "step s, of eight": f"{statistics.median(steps[kind, 8]):.4f}",
        }
        for kind in Quantization
    ]


def step_seconds(engine: Engine, count: int) -> float:
    """Return the seconds of a step of so many requests together."""
    wanted = [GenerationParams(prompt=f"a red circle {index}", seed=index) for index in range(count)]
    engine.generate(wanted)  # kernels are made for shapes when they are first met
    results = engine.generate(wanted)
    num_steps = engine.spec.num_inference_steps
    return max(result.timings.denoise_seconds for result in results) / num_steps


def products() -> list[Row]:
    """Return the time of plain products in the engine's dtype, and how many times as fast the kinds are."""
    torch.set_num_threads(1)
    rows = []
    for width, outputs in _WIDTHS:
        layers = {kind: layer(width, outputs, kind) for kind in Quantization}
        for num_rows in _ROWS:
            x = torch.randn(num_rows, width).to(engine_dtype())
            times: dict[Quantization, float] = {}
            for _ in range(_PRODUCT_ROUNDS):
                for kind, each in layers.items():
                    times[kind] = min(times.get(kind, 1e9), cpu_seconds(each, x))
            plain = times.pop(Quantization.NONE)
            told = {kind.value: f"{plain / seconds:.2f}×" for kind, seconds in times.items()}
            rows.append(
                {
                    "product": f"{width} → {outputs}",
                    "rows": str(num_rows),
                    "plain ms": f"{1e3 * plain:.2f}",
                    **told,
                }
            )
            print(rows[-1], flush=True)
    return rows


def layer(width: int, outputs: int, kind: Quantization) -> Linear:
    plain = Linear(width, outputs)
    plain.weight.data = (torch.randn(outputs, width) / width**0.5).to(engine_dtype())
    plain.bias = nn.Parameter(torch.zeros(outputs, dtype=engine_dtype()), requires_grad=False)
    if kind is Quantization.NONE:
        return plain
    quantized = QuantizedLinear(plain, kind, is_weight_only=False)
    quantized.prepare()
    return quantized


def cpu_seconds(layer: nn.Module, x: torch.Tensor) -> float:
    start = time.thread_time()
    layer(x)
    return time.thread_time() - start


def report(part: str, tables: dict[str, list[Row]], label: str) -> None:
    text = "\n\n".join(markdown_table(title, rows) for title, rows in tables.items())
    print(text)
    stem = RESULTS / f"quantization-{part}_{label}"
    write = write_counted if part == "quality" else write_report
    write(stem, tables, f"# Quantized weights: {part}\n\n{text}", read_conditions(_PACKAGES))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("quality", "speed"))
    parser.add_argument("--models", nargs="+", default=MODELS, help="names or folders")
    parser.add_argument("--num-prompts", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--label", default="cpu", help="names the machine in the result's file name")
    return parser.parse_args()


if __name__ == "__main__":
    main()
