"""`diffuserve bench` beside NVIDIA's aiperf: the same requests at the same times on one server.

    python -m benchmarks referee                # 2 rounds of 80 requests each
    python -m benchmarks referee --quick        # one round of 10; writes nothing

A real `diffuserve serve` draws mixed small images by the bundled model. Both clients replay one file of
requests with their due times through the API of OpenAI's form, in turn, and each one's own report is read.
aiperf has an environment of its own (`out/test-environments/aiperf`, 1.2 GB), which is made once.
"""

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.control.processes import DIFFUSERVE, Program, free_port, serving_environment
from benchmarks.serve.load import running
from benchmarks.shared import workloads
from benchmarks.shared.places import RESULTS
from benchmarks.shared.report import markdown_table, read_conditions, write_report
from support.environments import environment

AIPERF = "0.13.0"
OURS, THEIRS = "diffuserve bench", f"aiperf {AIPERF}"
RATE = 4.0
_FEW = 10
TOKENIZER = workloads.CHECKPOINT / "tokenizer"
"""aiperf needs one, also where no tokens are counted, and would fetch another."""
_FIGURES = ("avg", "p50", "p90", "p95", "p99")
_SHOWN = (*_FIGURES, "requests/s", "client's CPU s", "wall s")
_LIMIT_SECONDS = 300.0

Figures = Mapping[str, float]
"""Milliseconds, requests a second, and what the client took, by `_SHOWN`."""


@dataclass(frozen=True)
class Place:
    """The server, what is replayed on it, and a folder for what the clients write."""

    url: str
    requests: Path
    folder: Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="play one round of 10, and write nothing")
    parser.add_argument("--label", default="cpu", help="name of the machine in the result's name")
    arguments = parser.parse_args()
    count, rounds = (_FEW, 1) if arguments.quick else (80, arguments.rounds)
    python = environment("aiperf", [f"aiperf=={AIPERF}"], sees_project=False) / "bin" / "python"
    with tempfile.TemporaryDirectory() as folder:
        played = asyncio.run(measure(Path(folder), count, rounds, python))
    text = markdown_table("One server, one load, two clients", rows(played))
    print(text)
    if not arguments.quick:
        about = f"{rounds} rounds in turn of {count} requests, {RATE:g} a second at random; medians."
        content = {"about": about, "rounds": {name: list(figures) for name, figures in played.items()}}
        text = f"# `diffuserve bench` and its referee\n\n{about}\n\n{text}"
        conditions = read_conditions(("torch", "httpx")) | {"aiperf": AIPERF}
        write_report(RESULTS / f"referee_{arguments.label}", content, text, conditions)


async def measure(folder: Path, count: int, rounds: int, python: Path) -> dict[str, list[Figures]]:
    """Return the figures of both clients by round, after a play that does not count."""
    port, requests = free_port(), folder / "requests.jsonl"
    requests.write_text("".join(f"{json.dumps(line)}\n" for line in lines(count)))
    place = Place(f"http://127.0.0.1:{port}", requests, folder)
    command = [*DIFFUSERVE, "serve", "--port", str(port), "--data-dir", str(folder / "data")]
    server = Program("serve", command, serving_environment(), folder / "serve.log")
    clients: dict[str, Callable[[], Figures]] = {
        OURS: lambda: play_ours(place),
        THEIRS: lambda: play_theirs(place, python),
    }
    played: dict[str, list[Figures]] = {name: [] for name in clients}
    async with running(server, port, "/readyz"):
        await asyncio.to_thread(play_ours, place)
        for _ in range(rounds):
            for name, play in clients.items():
                played[name].append(await asyncio.to_thread(play))
    return played


def lines(count: int) -> list[dict[str, Any]]:
    """Return requests as both clients read them from a file."""
    requests = workloads.tiered(count, 0)  # of a size that this door does not round: ours looks at outputs
    return [
        {
            "text": params.prompt,
            "timestamp": round(second * 1000),
            "extra": {
                "size": f"{params.width}x{params.height}",
                "num_inference_steps": params.num_inference_steps,
                "seed": params.seed,
            },
        }
        for params, second in zip(requests, workloads.arrival_seconds(count, 0, RATE), strict=True)
    ]


def play_ours(place: Place) -> Figures:
    load = ["--input-file", str(place.requests), "--fixed-schedule", "--warmup-request-count", "0"]
    command = [
        *DIFFUSERVE,
        "bench",
        f"sglang={place.url}",
        *load,
        "--model",
        workloads.CHECKPOINT.name,
        "--json",
    ]
    told, spent = run(command, place.folder)
    return figures_of(json.loads(told)["results"][0], spent)


def play_theirs(place: Place, python: Path) -> Figures:
    kept = Path(tempfile.mkdtemp(dir=place.folder))
    load = ["--input-file", str(place.requests), "--custom-dataset-type", "single_turn", "--fixed-schedule"]
    quiet = ["--ui", "none", "--no-gpu-telemetry", "--no-server-metrics", "--tokenizer", str(TOKENIZER)]
    server = ["--url", place.url, "--endpoint-type", "image_generation", "--model", workloads.CHECKPOINT.name]
    command = [str(python), "-m", "aiperf", "profile", *server, *load, *quiet, "--artifact-dir", str(kept)]
    _, spent = run(command, place.folder)
    [report] = kept.rglob("profile_export_aiperf.json")
    return figures_of(json.loads(report.read_text()), spent)


def run(command: Sequence[str], folder: Path) -> tuple[str, Figures]:
    """Return what a client prints, and the seconds that it took of the CPU and of the day."""
    start, before = time.perf_counter(), _children_seconds()
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4_000:]
    spent = {"client's CPU s": _children_seconds() - before, "wall s": time.perf_counter() - start}
    return done.stdout, spent


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def figures_of(report: Mapping[str, Any], spent: Figures) -> Figures:
    """Return the figures of a report in aiperf's form."""
    latency = report["request_latency"]
    return {
        **{name: latency[name] for name in _FIGURES},
        "requests/s": report["request_throughput"]["avg"],
        **spent,
    }


def rows(played: Mapping[str, Sequence[Figures]]) -> list[dict[str, str]]:
    medians = {
        client: {name: statistics.median(each[name] for each in figures) for name in _SHOWN}
        for client, figures in played.items()
    }
    ours, theirs = medians[OURS], medians[THEIRS]
    return [
        {
            "figure": f"{name}, ms" if name in _FIGURES else name,
            OURS: f"{ours[name]:.1f}",
            THEIRS: f"{theirs[name]:.1f}",
            "ours / theirs": f"**{ours[name] / theirs[name]:.2f}**",
        }
        for name in _SHOWN
    ]


if __name__ == "__main__":
    main()
