"""Play the strategies of tenants who want more than their share, and write what each of them gives.

    python -m benchmarks adversaries --out benchmarks/results/adversaries_2026-11-24

The real job store is played with on SQLite, with a clock that is moved and a worker that only counts
(`tests/support/arena.py`). A strategy's share is its tenant's device-seconds over half of what both had
in ten minutes.
"""

import argparse
import asyncio
import json
import logging
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from support.adversaries import GAMES, play


def rows() -> list[dict[str, object]]:
    """Play every game, each on a database of its own."""
    found = []
    for name, game in GAMES.items():
        with tempfile.TemporaryDirectory() as folder:
            outcome = asyncio.run(play(game, Path(folder)))
        found.append({"strategy": name, "share": round(outcome.share, 2), "p95 wait": round(outcome.wait, 1)})
    return found


def table(found: list[dict[str, object]]) -> str:
    """Return the rows as a table in Markdown."""
    head = f"| {' | '.join(found[0])} |\n|{'---|' * len(found[0])}\n"
    return head + "".join(f"| {' | '.join(map(str, row.values()))} |\n" for row in found)


def main() -> None:
    parser = argparse.ArgumentParser(description="Strategies against fair queueing, simulated.")
    parser.add_argument("--out", type=Path, help="Write OUT.json and OUT.md.")
    args = parser.parse_args()
    logging.disable(logging.WARNING)  # of reapers that simulated minutes leave out
    found = rows()
    print(table(found))
    if args.out:
        args.out.with_suffix(".json").write_text(json.dumps({"rows": found}, indent=1) + "\n")
        args.out.with_suffix(".md").write_text(table(found))


if __name__ == "__main__":
    main()
