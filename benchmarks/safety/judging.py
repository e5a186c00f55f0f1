"""Latency of a server while it judges the prompts of a large batch.

    python -m benchmarks judging                     # 5,000 prompts of 2,000 characters, three ways
    python -m benchmarks judging --num-items 1000

A server on SQLite, without workers; this process sends the batch and gets `/healthz` fifty times a second.
`quiet` is the server without a batch, the others are with one: judged in processes of their own
(`prompt_filter_processes` as by default), and judged in the server itself (0). Nothing else should run on
the machine.
"""

import argparse
import asyncio
import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.control.database import open_database
from benchmarks.control.follower_load import Prober, get_request
from benchmarks.control.jobs import REGISTRATION, ControlPlane
from benchmarks.control.load import Connection, post_request
from benchmarks.shared.places import RESULTS
from benchmarks.shared.report import markdown_table, read_conditions, write_report

_TITLE = "# A server while it judges a batch"
_QUIET_SECONDS = 10.0
_PACKAGES = ("fastapi", "uvicorn", "google-re2", "numpy", "sqlalchemy")
_SENTENCES = (
    "A large red circle stands above two green squares.",
    "The lighthouse on the cliff is seen at sunrise, in mist.",
    "An old map of a harbour lies on a wooden table beside a lamp.",
    "Snow covers the roofs of a village below the mountain.",
)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Milliseconds of GET `/healthz`, and seconds until the batch was accepted."""

    case: str
    num_probes: int
    median_ms: float
    p99_ms: float
    max_ms: float
    batch_seconds: float


def main() -> None:
    arguments = parse_arguments()
    cases: dict[str, Mapping[str, str]] = {
        "judged in other processes": {},
        "judged in the server": {"DIFFUSERVE_PROMPT_FILTER_PROCESSES": "0"},
    }
    figures = []
    for case, settings in cases.items():
        with tempfile.TemporaryDirectory(prefix="diffuserve-judging-") as folder:
            figures += asyncio.run(measure(case, settings, Path(folder), arguments))
    text = markdown_table("GET /healthz (target: p99 50 ms)", [_row(part) for part in figures])
    print(text)
    content = {"num_items": arguments.num_items, "figures": [asdict(part) for part in figures]}
    write_report(
        RESULTS / f"judging_{arguments.label}", content, f"{_TITLE}\n\n{text}", read_conditions(_PACKAGES)
    )


async def measure(
    case: str, settings: Mapping[str, str], folder: Path, arguments: argparse.Namespace
) -> list[Figures]:
    """Return the figures of a server before a batch and during it."""
    with open_database("sqlite", folder) as database:
        async with ControlPlane(database, folder, num_agents=0, settings=settings) as plane:
            request = batch_request(arguments.num_items, arguments.num_characters)
            async with Connection(plane.port) as connection:
                await connection.post("/v1/workers", REGISTRATION)  # its model takes the batch
            quiet = Prober(plane.port, get_request("/healthz", key=""))
            await quiet.run(_QUIET_SECONDS)
            busy = Prober(plane.port, get_request("/healthz", key=""))
            probing = asyncio.create_task(busy.run(math.inf))
            seconds = await send_batch(plane.port, request)
            probing.cancel()
            with suppress(asyncio.CancelledError):
                await probing
    return [_figures(f"quiet, before {case}", quiet, 0.0), _figures(case, busy, seconds)]


def batch_request(num_items: int, num_characters: int) -> bytes:
    """Return the request of a batch of prompts, no two alike."""
    dice = random.Random(0)
    items = (
        {"custom_id": f"item-{number}", "input": {"prompt": _prompt(dice, num_characters)}}
        for number in range(num_items)
    )
    request = post_request("/v1/batches", "\n".join(map(json.dumps, items)).encode())
    return request.replace(b"application/json", b"application/jsonl", 1)


async def send_batch(port: int, request: bytes) -> float:
    """Return the seconds until a batch was accepted."""
    started = time.perf_counter()
    async with Connection(port) as connection:
        answer = await connection.send(request)
    if answer.status != 202:
        raise RuntimeError(f"the batch was answered {answer.status}: {answer.body[:500]!r}")
    return time.perf_counter() - started


def _prompt(dice: random.Random, num_characters: int) -> str:
    return " ".join(dice.choice(_SENTENCES) for _ in range(num_characters // 40))[:num_characters]


def _figures(case: str, prober: Prober, batch_seconds: float) -> Figures:
    return Figures(
        case=case,
        num_probes=len(prober.milliseconds),
        median_ms=statistics.median(prober.milliseconds),
        p99_ms=prober.p99_ms,
        max_ms=prober.max_ms,
        batch_seconds=batch_seconds,
    )


def _row(figures: Figures) -> dict[str, str]:
    return {
        "server": figures.case,
        "probes": f"{figures.num_probes}",
        "median ms": f"{figures.median_ms:.1f}",
        "p99 ms": f"**{figures.p99_ms:.1f}**",
        "max ms": f"{figures.max_ms:.1f}",
        "batch accepted after, s": f"{figures.batch_seconds:.1f}" if figures.batch_seconds else "",
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num-items", type=int, default=5_000, help="prompts of the batch (default 5000)")
    parser.add_argument("--num-characters", type=int, default=2_000, help="of each prompt (default 2000)")
    parser.add_argument("--label", default="cpu", help="names the machine in the result's file name")
    return parser.parse_args()


if __name__ == "__main__":
    main()
