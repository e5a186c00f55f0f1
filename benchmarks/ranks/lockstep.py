"""Costs and gains of several ranks: commands, agreement and heartbeats in ms, and a step on 1, 2 and 4 ranks.

    python -m benchmarks lockstep

A random FLUX.1 of the tiny model's kind with eight attention heads, in float32 over Gloo, one thread a
rank. With more ranks than cores a step cannot get faster; the costs of lockstep are what to read then.
Nothing else should run on the machine.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.ranks.lockstep_costs import Costs
from benchmarks.shared.places import RESULTS
from benchmarks.shared.report import markdown_table, read_conditions, write_report
from diffuserve.testing.checkpoints import write_flux_checkpoint

_PROGRAM = Path(__file__).with_name("lockstep_costs.py")
_TITLE = "# Ranks in lockstep\n\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--sides", type=int, nargs="+", default=[128, 512], help="of images, in pixels")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--label", default="cpu", help="names the machine in the result's file name")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = write_flux_checkpoint(Path(folder) / "flux")
        runs = {
            (side, ranks): [_run(model, side, ranks, Path(folder)) for _ in range(arguments.rounds)]
            for side in arguments.sides
            for ranks in arguments.ranks
        }
    costs = [_median(found) for found in runs.values()]
    text = markdown_table("Milliseconds a step, over Gloo", [_row(row, costs) for row in costs])
    print(text)
    content = {"costs": [asdict(row) for row in costs]}
    write_report(RESULTS / f"lockstep_{arguments.label}", content, _TITLE + text, read_conditions(("torch",)))


def _run(model: Path, side: int, ranks: int, folder: Path) -> Costs:
    out = folder / "costs.json"
    launcher = (sys.executable, "-m", "diffuserve.engine_process.ranks.launcher", f"--ranks={ranks}", "--")
    program = (str(_PROGRAM), "--model", str(model), "--side", str(side), "--out", str(out))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*launcher, *program], check=True, env=environment, capture_output=True, timeout=300)
    return Costs(**json.loads(out.read_text()))


def _median(runs: list[Costs]) -> Costs:
    values = {name: [getattr(run, name) for run in runs] for name in asdict(runs[0])}
    return Costs(**{name: statistics.median(found) for name, found in values.items()})


def _row(row: Costs, costs: list[Costs]) -> dict[str, str]:
    alone = next(other for other in costs if other.side == row.side and other.ranks == 1)
    return {
        "image": f"{row.side} × {row.side}",
        "ranks": f"{row.ranks:g}",
        "order": f"{row.order_ms:.2f}",
        "agreement": f"{row.agree_ms:.2f}",
        "lockstep in all": f"**{row.own_ms:.2f}**",
        "beat, on its own thread": f"{row.beat_ms:.2f}",
        "whole step": f"{row.step_ms:.1f}",
        "against one rank": f"{alone.step_ms / row.step_ms:.2f}×",
    }


if __name__ == "__main__":
    main()
