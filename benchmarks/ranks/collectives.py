"""Count what ranks of a plan exchange in a guided step of Wan 2.1's 14B, and what each has and computes.

    python -m benchmarks collectives

A clip of 81 frames of 832×480 pixels, in bf16, on tensors that have shapes and no memory: no GPU is
needed, and no time is measured. Results go to `benchmarks/results/` as JSON and as a table.
"""

import argparse
from dataclasses import asdict

from benchmarks.shared.places import RESULTS
from benchmarks.shared.report import markdown_table, read_conditions, write_report
from diffuserve.parallel.plan import ParallelPlan
from support.collective_counter import Exchange
from support.wan_step import CLIP, RankStep, count_rank

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
_TITLE = "# What ranks exchange in a guided step of Wan 2.1's 14B\n\n"
_KINDS = {"all-reduce": "allreduce_", "all-to-all": "alltoall_base_", "all-gather": "allgather_"}
_GIGA, _TERA = 1e9, 1e12


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--label", default="fake-cuda", help="names the result files: collectives_LABEL_DATE")
    options = parser.parse_args()
    counted = {text: count_rank(ParallelPlan.parse(text)) for text in PLANS}
    caption = f"A rank's part of two passes of {CLIP.tokens:,} tokens"
    text = _TITLE + markdown_table(caption, [row_of(*each) for each in counted.items()])
    print(text)
    content = {plan: asdict(step) for plan, step in counted.items()}
    write_report(RESULTS / f"collectives_{options.label}", content, text, read_conditions(["torch"]))


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
