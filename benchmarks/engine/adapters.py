"""What requests' adapters cost in a shared step, beside the same step without any.

    python -m benchmarks adapters
    python -m benchmarks adapters --widths 192 --dtypes float32 --rounds 5    # a part; writes nothing

Eight requests share a step of FLUX.1's layout, on one thread: none has an adapter, all have the same, four
adapters have two each, or one request alone has one. Adapters have rank 16 on all linear layers. The cases
take turns, and figures are CPU seconds of the stepping thread: the best of all rounds, and their median.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from benchmarks.shared import workloads
from benchmarks.shared.places import RESULTS
from benchmarks.shared.report import markdown_table, read_conditions, write_report
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.loading import load_model, parse_plan
from diffuserve.engine.model_runner import image_generators
from diffuserve.models.families.packed_images.pipeline import PackedImagePipeline
from diffuserve.models.layers.adapted.adapters import Uses
from diffuserve.models.layers.adapted.lora_pair import LoraPair
from diffuserve.models.pipelines.base import DenoiseInput, PackedPipeline, packed
from diffuserve.testing.checkpoints import write_flux_checkpoint

RANK, REQUESTS = 16, 8
TARGETS = {192: 1.12, 1024: 1.05}
"""At most so many times the step without adapters, by the transformer's width: four adapters, float32."""
_SIDES = {192: 128, 1024: 256}  # pixels of an image
_ROUNDS_SHARE = {192: 1, 1024: 4}  # of the rounds, steps that take thirty times as long have a fourth


@dataclass(frozen=True)
class Figure:
    """CPU milliseconds of a step, and how many times those of the step without adapters."""

    width: int
    dtype: str
    case: str
    best_ms: float
    median_ms: float
    times_none: float


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(1)
    figures = [
        figure
        for width in options.widths
        for dtype in options.dtypes
        for figure in measure(width, dtype, -(-options.rounds // _ROUNDS_SHARE[width]))
    ]
    text = "# What adapters cost\n\n" + markdown_table(
        "A step of eight requests", [_row(each) for each in figures]
    )
    print(text)
    if not options.is_part:
        content = {"figures": [asdict(each) for each in figures]}
        write_report(RESULTS / f"adapters_{options.label}", content, text, read_conditions(["torch"]))


def measure(width: int, dtype: str, rounds: int) -> list[Figure]:
    """Time the cases in turns; a first round warms up."""
    with tempfile.TemporaryDirectory() as folder:
        pipeline = load(width, dtype, Path(folder))
    batch = inputs(pipeline, _SIDES[width])
    batches = {name: with_uses(batch, uses) for name, uses in cases(pipeline).items()}
    seconds: dict[str, list[float]] = {name: [] for name in batches}
    for number in range(rounds + 1):
        for name, own in batches.items():
            start = time.thread_time()
            pipeline.denoise(own)
            if number:
                seconds[name].append(time.thread_time() - start)
    base = min(seconds["none"])
    return [
        Figure(width, dtype, name, 1000 * min(own), 1000 * statistics.median(own), min(own) / base)
        for name, own in seconds.items()
    ]


def load(width: int, dtype: str, folder: Path) -> PackedPipeline:
    """Load the frozen tiny-flux, or a random model that is wider."""
    model = workloads.CHECKPOINT
    if width != 192:
        heads = {
            "num_attention_heads": width // 128,
            "attention_head_dim": 128,
            "axes_dims_rope": (16, 56, 56),
        }
        model = write_flux_checkpoint(folder, transformer={**heads, "num_layers": 1, "num_single_layers": 2})
    return packed(load_model(model, parse_plan("cpu", dtype, None, None)).pipeline)


def inputs(pipeline: PackedPipeline, side: int) -> list[DenoiseInput]:
    """Return requests at their first step, of one size and with prompts of their own."""
    length = min(64, pipeline.spec.longest_sequence_length)
    asked = [
        GenerationParams(
            prompt=f"a red circle {seed}", width=side, height=side, num_inference_steps=4,
            max_sequence_length=length, seed=seed,
        )
        for seed in range(REQUESTS)
    ]  # fmt: skip
    params = [pipeline.spec.resolve(each, seed=0) for each in asked]
    return [
        DenoiseInput(
            each,
            conditioning,
            pipeline.init_latents(each, conditioning, image_generators(each)).latents,
            pipeline.schedule(each).timesteps[0],
        )
        for each, conditioning in zip(params, pipeline.encode(params), strict=True)
    ]


def cases(pipeline: PackedPipeline) -> Mapping[str, Sequence[Uses]]:
    own: list[Uses] = [
        ((pipeline.place_adapter(str(seed), random_adapter(pipeline, seed)), 0.8),) for seed in range(4)
    ]
    return {
        "none": [()] * REQUESTS,
        "one for all": [own[0]] * REQUESTS,
        "four, for two each": [own[index % 4] for index in range(REQUESTS)],
        "one, for one of eight": [own[0], *[()] * (REQUESTS - 1)],
    }


def with_uses(batch: Sequence[DenoiseInput], uses: Sequence[Uses]) -> list[DenoiseInput]:
    return [replace(each, adapters=own) for each, own in zip(batch, uses, strict=True)]


def random_adapter(pipeline: PackedPipeline, seed: int) -> Mapping[str, Mapping[str, LoraPair]]:
    """Return an adapter of all linear layers, by their names in checkpoints."""
    assert isinstance(pipeline, PackedImagePipeline)
    generator = torch.Generator().manual_seed(seed)
    layers = dict(pipeline.transformer.named_parameters())
    pairs = {}
    for name, place in pipeline.transformer.placements().items():
        weight = layers[place.parameter]
        if weight.dim() == 2:
            outputs, inputs = weight.shape[0] // place.num_parts, weight.shape[1]
            down, up = (
                torch.randn(RANK, inputs, generator=generator),
                torch.randn(outputs, RANK, generator=generator),
            )
            pairs[name.removesuffix(".weight")] = LoraPair(down / inputs, up / RANK)
    return {"transformer": pairs}


def _row(figure: Figure) -> dict[str, str]:
    is_held = figure.dtype == "float32" and figure.case.startswith("four")
    return {
        "width": str(figure.width),
        "dtype": figure.dtype,
        "adapters": figure.case,
        "best ms": f"{figure.best_ms:.1f}",
        "median ms": f"{figure.median_ms:.1f}",
        "times none": f"**{figure.times_none:.3f}**",
        "target": f"≤ {TARGETS[figure.width]}" if is_held else "",
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--widths", type=int, nargs="+", choices=list(TARGETS), default=list(TARGETS))
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--label", default="cpu", help="names the machine in the result's file name")
    options = parser.parse_args()
    options.is_part = options.rounds < 25 or len(options.widths) < len(TARGETS) or len(options.dtypes) < 2
    return options


if __name__ == "__main__":
    main()
