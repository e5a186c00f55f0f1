"""Claims of the field about serving images, each as a ratio of two things that run in turn in one run.

    python -m benchmarks claims                 # make bench NAME=claims
    python -m benchmarks claims --quick         # one tiny round of each; writes nothing

Each round plays both sides of a ratio, one after the other; a ratio is that of their medians. What only a GPU
can show is computed from what FLUX.1 is counted to be. Results go to `benchmarks/results/`, and from there,
by `make reference`, into `docs/explanation/claims.md`. Nothing else should run on the machine.
"""

import argparse
import time
from collections.abc import Callable, Iterable, Sequence

from benchmarks.claims import batching, models, starting
from benchmarks.claims.claim import CLAIMS, Finding, kept
from benchmarks.claims.counted import counted
from benchmarks.shared import workloads
from benchmarks.shared.places import RESULTS
from benchmarks.shared.report import markdown_table, read_conditions, write_report
from benchmarks.shared.sides import OurSide, RemoteSide

_PACKAGES = ("torch", "diffusers", "transformers")
Part = Callable[[], Iterable[Finding]]


def main() -> None:
    arguments = parse_arguments()
    ours = RemoteSide(OurSide)
    findings: list[Finding] = []
    for name, part in parts(ours, is_quick=arguments.quick).items():
        if arguments.only in (None, name):
            start = time.monotonic()
            found = list(part())
            findings += found
            print(f"{name}: {time.monotonic() - start:.0f} s", flush=True)
            for each in found:
                print(f"  {each.compared}: {each.shown}", flush=True)
    ours.stop()
    findings = [each for name in CLAIMS for each in findings if each.claim == name]
    text = table(findings)
    print(f"\n{text}")
    if not arguments.quick and arguments.only is None:
        conditions = read_conditions(_PACKAGES) | {"checkpoint": workloads.checkpoint_name()}
        stem = RESULTS / f"claims_{arguments.label}"
        write_report(
            stem, {"claims": [*map(kept, findings)]}, f"# What the field claims\n\n{text}", conditions
        )


def parts(ours: RemoteSide, is_quick: bool) -> dict[str, Part]:
    """Return what is played, by name."""
    rounds, count = (1, 4) if is_quick else (3, 32)
    return {
        "loading": lambda: starting.loading(rounds + 2),
        "starting": lambda: starting.starting(rounds),
        "ten": lambda: batching.ten(ours, rounds + 2),
        "waiting": lambda: batching.waiting(ours, count // 2, rounds),
        "containers": lambda: batching.containers(ours, count, rounds),
        "continuous": lambda: batching.continuous(ours, count, rounds),
        "steps": lambda: models.steps(ours, rounds + 2),
        "offload": lambda: models.offload(rounds),
        "bits": models.bits,
        "counted": counted,
    }


def table(findings: Sequence[Finding]) -> str:
    """Return a row for each finding."""
    rows = [
        {
            "what is said": each.said,
            "compared here": each.compared,
            "": each.way,
            "here": f"**{each.shown}**",
            "single rounds": each.spread,
            "than said": each.verdict,
        }
        for each in findings
    ]
    return markdown_table("Claims, and what is found of them", rows)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one tiny round of each; writes no result")
    parser.add_argument("--only", help="one part; writes no result")
    parser.add_argument("--label", default="cpu", help="names the machine in the result's file name")
    return parser.parse_args()


if __name__ == "__main__":
    main()
