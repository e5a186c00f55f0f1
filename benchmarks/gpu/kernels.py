"""Count what a denoising step of FLUX.1-schnell is for a GPU: kernels, memory traffic, operations and memory.

    python -m benchmarks kernels

Counts the transformer's pass over one image of 1360×768 and over four, in bf16, on tensors that have shapes
and no memory: no GPU is needed, and no time is measured. Results go to `benchmarks/results/` as JSON and as
tables.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict

from benchmarks.shared.places import RESULTS
from benchmarks.shared.report import markdown_table, read_conditions, write_report
from diffuserve.models.layers.joint.packing import SequenceShape
from support.flux_step import LANDSCAPE, attention_flops, count_step
from support.kernel_counter import KernelCounter, Work, kind_of

BATCHES = (1, 4)
_GIGA, _TERA, _MIB = 1e9, 1e12, 2**20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--label", default="fake-cuda", help="names the result files: kernels_LABEL_DATE")
    parser.add_argument("--quick", action="store_true", help="count one image; write nothing")
    options = parser.parse_args()
    batches = [[LANDSCAPE] * count for count in (BATCHES[:1] if options.quick else BATCHES)]
    counted = [(shapes, count_step(shapes)) for shapes in batches]
    text = "\n\n".join(
        [markdown_table("A step", [summary_row(*each) for each in counted])]
        + [markdown_table(title_of(shapes), operation_rows(counter)) for shapes, counter in counted]
    )
    print(text)
    if not options.quick:
        content = {"batches": [as_values(*each) for each in counted]}
        write_report(RESULTS / f"kernels_{options.label}", content, text, read_conditions(["torch"]))


def title_of(shapes: Sequence[SequenceShape]) -> str:
    images = "one image" if len(shapes) == 1 else f"{len(shapes)} images"
    return f"{images}, {sum(shape.tokens for shape in shapes):,} tokens"


def summary_row(shapes: Sequence[SequenceShape], counter: KernelCounter) -> dict[str, str]:
    products, attention = counter.of("product"), counter.of("attention")
    return {
        "images": str(len(shapes)),
        "tokens": f"{sum(shape.tokens for shape in shapes):,}",
        "kernels": f"{counter.total.kernels:,}",
        "elementwise GB": gigabytes(counter.of("elementwise")),
        "products GB": gigabytes(products),
        "attention GB": gigabytes(attention),
        "TFLOP": f"{(products.flops + attention_flops(shapes)) / _TERA:.1f}",
        "peak of activations MiB": f"{counter.peak_bytes / _MIB:,.0f}",
    }


def operation_rows(counter: KernelCounter) -> list[dict[str, str]]:
    """Return a row for each operation, those with the most traffic first."""
    most_first = sorted(counter.by_operation.items(), key=lambda each: -each[1].bytes)
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


def as_values(shapes: Sequence[SequenceShape], counter: KernelCounter) -> dict[str, object]:
    return {
        "images": len(shapes),
        "tokens": sum(shape.tokens for shape in shapes),
        "peak_bytes": counter.peak_bytes,
        "attention_flops": attention_flops(shapes),
        "operations": {name: asdict(work) for name, work in counter.by_operation.items()},
    }


if __name__ == "__main__":
    main()
