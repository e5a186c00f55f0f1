"""CPU and wall seconds of short commands: this version beside an earlier one.

    python -m benchmarks start                       # beside the commit before starts were shortened
    python -m benchmarks start --before 77b244e --rounds 7
    python -m benchmarks start --only after --command generate --rounds 3

Each command is a process of its own, whose CPU time (user and system, of all its threads and children) the
kernel counts. `refused: …` are commands that end with exit code 2. `api` is a control plane on SQLite until
it answers `/healthz`, and `submit` a job for it. The sides take turns; one unmeasured round comes first, in
which Python compiles what it imports. Nothing else should run on the machine: CPU seconds hardly suffer from
neighbors, wall seconds do.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
import psutil

from benchmarks.control.jobs import REGISTRATION
from benchmarks.control.processes import DIFFUSERVE, api_command, free_port
from benchmarks.shared.places import RESULTS, ROOT
from benchmarks.shared.report import markdown_table, read_conditions, write_report

_BEFORE, _AFTER = "before", "after"
_PACKAGES = ("torch", "onnxruntime", "pydantic", "fastapi")
_PROMPT = "a red circle on a white background"
_REFUSED = 2
_PATIENCE_SECONDS = 60.0
_TITLE = "# Starts"
_ABOUT = "Medians over the rounds, in seconds; the sides take turns. `cpu` is user and system time."

_WORKER = (*DIFFUSERVE, "worker", "--server", "http://127.0.0.1:9")  # where nobody listens

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "generate": (*DIFFUSERVE, "generate", _PROMPT, "--seed", "7"),
    "import Engine": (sys.executable, "-c", "from diffuserve import Engine"),
    "--help": (*DIFFUSERVE, "--help"),
    "refused: generate --model nope": (*DIFFUSERVE, "generate", _PROMPT, "--model", "nope"),
    "refused: generate --size 4096x4096": (*DIFFUSERVE, "generate", _PROMPT, "--size", "4096x4096"),
    "refused: generate --device cuda:99": (*DIFFUSERVE, "generate", _PROMPT, "--device", "cuda:99"),
    "refused: serve --model tiny-flx": (*DIFFUSERVE, "serve", "--port", "0", "--model", "tiny-flx"),
    "refused: worker --model tiny-flx": (*_WORKER, "--model", "tiny-flx"),
}
SERVED = ("api", "submit")


@dataclass(frozen=True)
class Cost:
    """Seconds of a process."""

    cpu: float
    wall: float


def main() -> None:
    arguments = parse_arguments()
    names = [arguments.command] if arguments.command else [*COMMANDS, *SERVED]
    with tempfile.TemporaryDirectory() as folder, sources(arguments, Path(folder)) as sides:
        found = measure(sides, names, arguments.rounds)
    text = "\n\n".join([_TITLE, _ABOUT, table(found)])
    print(text)
    if not (arguments.only or arguments.command):
        content = {
            name: {side: [asdict(cost) for cost in costs] for side, costs in by_side.items()}
            for name, by_side in found.items()
        }
        conditions = read_conditions(_PACKAGES) | {"beside": arguments.before}
        write_report(RESULTS / f"start_{arguments.label}", content, text, conditions)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", default="77b244e", help="commit to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=[_BEFORE, _AFTER], help="play one side and write no result")
    parser.add_argument("--command", choices=[*COMMANDS, *SERVED], help="play one and write no result")
    parser.add_argument("--label", default="cpu", help="names the machine in the result's file name")
    return parser.parse_args()


@contextmanager
def sources(arguments: argparse.Namespace, folder: Path) -> Iterator[dict[str, Path]]:
    """Yield the source folder of each side that is played."""
    sides = {_AFTER: ROOT / "src"} if arguments.only != _BEFORE else {}
    if arguments.only == _AFTER:
        yield sides
        return
    tree, git = folder / _BEFORE, ("git", "-C", str(ROOT), "worktree")
    subprocess.run([*git, "add", "--detach", str(tree), arguments.before], check=True, capture_output=True)
    try:
        yield {_BEFORE: tree / "src", **sides}
    finally:
        subprocess.run([*git, "remove", "--force", str(tree)], check=True, capture_output=True)


Found = dict[str, dict[str, list[Cost]]]


def measure(sides: Mapping[str, Path], names: Sequence[str], rounds: int) -> Found:
    """Return what each command cost on each side, in each round but the first."""
    found: Found = {name: {side: [] for side in sides} for name in names}
    for number in range(rounds + 1):
        for side, source in sides.items():
            for name, cost in play(source, names).items():
                print(f"round {number} {side} {name}: {cost.cpu:.2f} s cpu, {cost.wall:.2f} s", flush=True)
                if number:
                    found[name][side].append(cost)
    return found


def play(source: Path, names: Sequence[str]) -> dict[str, Cost]:
    """Run each command once, in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "PYTHONPATH": str(source),
            "DIFFUSERVE_CACHE_DIR": str(Path(folder) / "cache"),
        }
        costs = {name: run(name, folder, environment) for name in names if name in COMMANDS}
        return costs | (serve(folder, environment) if set(names) & set(SERVED) else {})


def run(name: str, folder: str, environment: Mapping[str, str]) -> Cost:
    return run_command(COMMANDS[name], folder, environment, _REFUSED if name.startswith("refused") else 0)


def run_command(command: Sequence[str], folder: str, environment: Mapping[str, str], expected: int) -> Cost:
    """Run a command to its end. Raise `RuntimeError` for another exit code."""
    start = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != expected:
        raise RuntimeError(f"{command} ended with {process.returncode}: {errors.decode()[-500:]}")
    return Cost(usage.ru_utime + usage.ru_stime, wall)


def serve(folder: str, environment: Mapping[str, str]) -> dict[str, Cost]:
    """Start a control plane, and submit a job to it."""
    port = free_port()
    server, data = f"http://127.0.0.1:{port}", Path(folder) / "data"
    start = time.perf_counter()
    process = subprocess.Popen(
        api_command(port, data, None),
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()  # its address, once it accepts requests
        httpx.get(f"{server}/healthz", timeout=_PATIENCE_SECONDS).raise_for_status()
        wall = time.perf_counter() - start
        times = psutil.Process(process.pid).cpu_times()
        httpx.post(f"{server}/v1/workers", json=REGISTRATION).raise_for_status()
        command = (*DIFFUSERVE, "submit", _PROMPT, "--server", server, "--model", "null")
        submit = run_command(command, folder, environment, 0)
    finally:
        process.terminate()
        process.wait()
    return {"api": Cost(times.user + times.system, wall), "submit": submit}


def table(found: Found) -> str:
    rows = []
    for name, by_side in found.items():
        row = {"command": f"`{name}`"}
        for side, costs in by_side.items():
            for figure in ("cpu", "wall"):
                values = [getattr(cost, figure) for cost in costs]
                row[f"{figure} {side}"] = f"{statistics.median(values):.2f}"
        rows.append(row)
    return markdown_table("Seconds from the start to the end of a command, or to the first answer", rows)


if __name__ == "__main__":
    main()
