"""Count what ranks exchange in a guided step of large models, and what each has and computes.

    python -m benchmarks collectives

A clip of 81 frames of 832×480 pixels by Wan 2.1's 14B, and an image of 1024×1024 by Qwen-Image, in bf16, on
tensors that have shapes and no memory: no GPU is needed, and no time is measured. Results go to
`benchmarks/results/` as JSON and as tables.
"""

import argparse
from dataclasses import asdict

from benchmarks.shared.places import RESULTS
from benchmarks.shared.report import markdown_table, read_conditions, write_counted
from diffuserve.models.layers.joint.packing import Grid
from diffuserve.parallel.plan import ParallelPlan
from support.collective_counter import Exchange
from support.packed_step import QWEN_IMAGE, shared_step
from support.rank_step import RankStep, SharedStep, count_rank
from support.wan_step import CLIP, wan_step

PLANS = (
    "sequence=1",
    "cfg=2",
    "tensor=2",
    "sequence=2",
    "tensor=4",
    "sequence=4",
    "cfg=2,tensor=2",
    "tensor=8",
    "sequence=8",
    "cfg=2,tensor=4",
    "cfg=2,sequence=4",
    "cfg=2,tensor=2,sequence=2",
)
_TITLE = "# What ranks exchange in a guided step\n\n"
_SQUARE = Grid(64, 64)  # 1024×1024 pixels
_KINDS = {"all-reduce": "allreduce_", "all-to-all": "alltoall_base_", "all-gather": "allgather_"}
_GIGA, _TERA = 1e9, 1e12


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--label", default="fake-cuda", help="names the result files: collectives_LABEL_DATE")
    options = parser.parse_args()
    plans = {text: ParallelPlan.parse(text) for text in PLANS}
    counted = {
        name: {text: count_rank(step, plan) for text, plan in plans.items()} for name, step in steps().items()
    }
    tables = [
        markdown_table(name, [row_of(*each) for each in plans.items()]) for name, plans in counted.items()
    ]
    text = _TITLE + "\n\n".join(tables)
    print(text)
    content = {name: {plan: asdict(step) for plan, step in plans.items()} for name, plans in counted.items()}
    write_counted(RESULTS / f"collectives_{options.label}", content, text, read_conditions(["torch"]))


def steps() -> dict[str, SharedStep]:
    """Return the steps by what they are."""
    image = shared_step(QWEN_IMAGE, QWEN_IMAGE.shapes(1, _SQUARE))
    return {
        f"Wan 2.1 14B: two passes of {CLIP.tokens:,} tokens": wan_step(),
        f"Qwen-Image: two passes of {_SQUARE.tokens:,} tokens and their texts": image,
    }


def row_of(plan: str, step: RankStep) -> dict[str, str]:
    exchanges = {kind: step.exchanges.get(name, Exchange()) for kind, name in _KINDS.items()}
    total = sum(exchanges.values(), Exchange())
    return {
        "plan": f"`{plan}`",
        "GPUs": str(ParallelPlan.parse(plan).num_ranks),
        "weights GB": f"{step.weight_bytes / _GIGA:.1f}",
        "peak of activations GB": f"{step.peak_bytes / _GIGA:.1f}",
        "TFLOP": f"{step.flops / _TERA:,.0f}",
        **{kind: f"{each.calls:,}" for kind, each in exchanges.items()},
        "sent GB": f"{total.sent / _GIGA:.2f}",
        "sent bytes for 1,000 operations": f"{1000 * total.sent / step.flops:.3f}",
    }


if __name__ == "__main__":
    main()
