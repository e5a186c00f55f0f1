"""Count what a denoising step of packed image models is for a GPU: kernels, traffic, operations and memory.

    python -m benchmarks kernels

Counts the transformers' passes over one image of 1024×1024 and over four, in bf16, on tensors that have
shapes and no memory: no GPU is needed, and no time is measured. Where a negative prompt guides, an image has
two sequences. From the counts it predicts images a minute, beside what others have published. Results go to
`benchmarks/results/` as JSON and as tables.
"""

import argparse
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from benchmarks.gpu.predicted import PUBLISHED, predicted_rows, published_rows
from benchmarks.shared.places import RESULTS
from benchmarks.shared.report import markdown_table, read_conditions, write_counted
from diffuserve.models.layers.joint.packing import Grid
from support.kernel_counter import Work, kind_of
from support.packed_step import MODELS, CountedStep, count_step

BATCHES = (1, 4)
SQUARE = Grid(64, 64)  # 1024×1024 pixels
_ADAPTED, _SMALL = "FLUX.1-schnell", Grid(32, 32)
_GIGA, _TERA, _MIB = 1e9, 1e12, 2**20


@dataclass(frozen=True)
class Counted:
    """A step over so many images of a model."""

    model: str
    images: int
    tokens: int
    step: CountedStep
    adapters: int = 0


def main() -> None:
    options = parse_arguments()
    counted = [count(name, images) for name in MODELS for images in BATCHES[: 1 if options.quick else None]]
    alone = {each.model: each.step for each in counted if each.images == 1}
    adapted = [] if options.quick else [count(_ADAPTED, 8, adapters) for adapters in (0, 1, 4, 8)]
    tables = [
        markdown_table("A step, counted", [summary_row(each) for each in counted]),
        markdown_table(
            "Eight images of 512×512, with so many adapters of rank 16", [*map(adapted_row, adapted)]
        ),
        markdown_table("Images a minute, *predicted* from the counts", predicted_rows(alone)),
        markdown_table("Published by others, beside the same prediction", published_rows(PUBLISHED)),
        *(markdown_table(f"{name}, one image", operation_rows(step)) for name, step in alone.items()),
    ]
    text = "\n\n".join(tables)
    print(text)
    if not options.quick:
        content = {"steps": [as_values(each) for each in (*counted, *adapted)]}
        write_counted(RESULTS / f"kernels_{options.label}", content, text, read_conditions(["torch"]))


def count(name: str, images: int, adapters: int | None = None) -> Counted:
    """Count a step; where a number of `adapters` is given, of smaller images which share them evenly."""
    shapes = MODELS[name].shapes(images, SQUARE if adapters is None else _SMALL)
    numbers = [index * adapters // len(shapes) for index in range(len(shapes))] if adapters else ()
    step = count_step(MODELS[name], shapes, numbers)
    return Counted(name, images, sum(shape.tokens for shape in shapes), step, adapters or 0)


def summary_row(counted: Counted) -> dict[str, str]:
    """Return the counts beside the floor: what products and attention alone read, write and compute."""
    kernels = counted.step.kernels
    floor = kernels.of("product") + kernels.of("attention")
    return {
        "model": counted.model,
        "images": str(counted.images),
        "tokens": f"{counted.tokens:,}",
        "kernels": f"{kernels.total.kernels:,}",
        "floor: kernels": f"{floor.kernels:,}",
        "floor: products GB": gigabytes(kernels.of("product")),
        "floor: attention GB": gigabytes(kernels.of("attention")),
        "elementwise GB": gigabytes(kernels.of("elementwise")),
        "TFLOP": f"{counted.step.flops / _TERA:.1f}",
        "peak of activations MiB": f"{kernels.peak_bytes / _MIB:,.0f}",
    }


def adapted_row(counted: Counted) -> dict[str, str]:
    kernels = counted.step.kernels
    return {
        "model": counted.model,
        "adapters": str(counted.adapters),
        "kernels": f"{kernels.total.kernels:,}",
        "products GB": gigabytes(kernels.of("product")),
        "elementwise GB": gigabytes(kernels.of("elementwise")),
        "TFLOP": f"{counted.step.flops / _TERA:.1f}",
    }


def operation_rows(step: CountedStep) -> list[dict[str, str]]:
    """Return a row for each operation, those with the most traffic first."""
    most_first = sorted(step.kernels.by_operation.items(), key=lambda each: -each[1].bytes)
    return [
        {
            "operation": f"`{name}`",
            "kind": kind_of(name),
            "kernels": f"{work.kernels:,}",
            "GB": gigabytes(work),
        }
        for name, work in most_first
    ]


def gigabytes(work: Work) -> str:
    return f"{work.bytes / _GIGA:.2f}"


def as_values(counted: Counted) -> Mapping[str, object]:
    kernels = counted.step.kernels
    return {
        "model": counted.model,
        "images": counted.images,
        "tokens": counted.tokens,
        "adapters": counted.adapters,
        "peak_bytes": kernels.peak_bytes,
        "attention_flops": counted.step.attention_flops,
        "operations": {name: asdict(work) for name, work in kernels.by_operation.items()},
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--label", default="fake-cuda", help="names the result files: kernels_LABEL_DATE")
    parser.add_argument("--quick", action="store_true", help="count one image; write nothing")
    return parser.parse_args()


if __name__ == "__main__":
    main()
