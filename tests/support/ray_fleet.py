"""What programs in Ray's environment share, which keep fleets of workers that generate nothing.

Their first argument is the control plane's URL, the second a folder.
"""

import json
import os
import shlex
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

SERVER, FOLDER = sys.argv[1], Path(sys.argv[2])
HOST = "127.0.0.2"  # Ray would replace 127.0.0.1 by an address that other machines reach
HANG_SECONDS = 180.0
NULL_ENGINE = ("-m", "diffuserve.testing.null_engine", "--files", "1", "--seconds", "0.5")
ENGINE = shlex.join((sys.executable, *NULL_ENGINE))
MARK = "FLEET_OF_TEST"
"""Variable of the nodes' environment, which what they start inherits."""
_ENDED = {"succeeded", "failed", "canceled", "expired"}


def ask(path: str, body: Any = None) -> Any:
    """Send a request to the control plane, and return the JSON of the response."""
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{SERVER}{path}", content, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=HANG_SECONDS) as response:
        return json.load(response)


def live() -> list[str]:
    """Return the ids of the workers that are ready."""
    workers = ask("/v1/workers")["data"]
    return [worker["id"] for worker in workers if worker["state"] in ("ready", "occupied")]


def submit(count: int, model: str = "null") -> list[str]:
    """Submit so many jobs, and return their ids."""
    bodies = [{"model": model, "input": {"prompt": f"star {number}"}} for number in range(count)]
    return [ask("/v1/jobs", body)["id"] for body in bodies]


def statuses(jobs: list[str]) -> list[str]:
    """Return the statuses that jobs have, each once."""
    return sorted({ask(f"/v1/jobs/{job}")["status"] for job in jobs})


def have_ended(jobs: list[str]) -> bool:
    return _ENDED.issuperset(statuses(jobs))


def reached(condition: Callable[[], bool]) -> bool:
    """Wait until a condition holds; return whether it did in time."""
    end = time.monotonic() + HANG_SECONDS
    while not (holds := condition()) and time.monotonic() < end:
        time.sleep(0.2)
    return holds


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "diffuserve", "fleet", "ray", *words]


def options(address: str) -> tuple[str, ...]:
    """Return the options of the fleet under test."""
    where = ("--server", SERVER, "--address", address, "--pool", "null", "--name", "test")
    worker = ("--device", "cpu", "--max-jobs", "2", "--drain-seconds", "5")
    return (*where, *worker, "--every", "0.5", "--engine-command", ENGINE)


def start_fleet(log: str, *words: str) -> "subprocess.Popen[bytes]":
    """Keep a fleet in a process of its own, which logs into a file of the folder."""
    with (FOLDER / log).open("w") as file:
        return subprocess.Popen(command(*words), stderr=file)


def marked(word: str) -> list[psutil.Process]:
    """Return the processes of this program's nodes that have a word in their command line."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        is_own = (process.info["environ"] or {}).get(MARK) == str(FOLDER)
        if is_own and any(word in each for each in process.info["cmdline"] or ()):
            found.append(process)
    return found


def mark() -> None:
    """Mark what this process starts from here on."""
    os.environ[MARK] = str(FOLDER)
