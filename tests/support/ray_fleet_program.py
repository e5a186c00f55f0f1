"""Keeps a fleet on several nodes of Ray on loopback, loses a node, and prints as JSON what became of it.

Its environment has Ray. The first argument is the control plane's URL, the second a folder. The engines
generate nothing.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.cluster_utils import Cluster

SERVER, FOLDER = sys.argv[1], Path(sys.argv[2])
HOST = "127.0.0.2"  # Ray would replace 127.0.0.1 by an address that other machines reach
NUM_JOBS = 60
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


def refusal(*words: str) -> str:
    """Return what a fleet says that cannot be kept, and nothing if it ended otherwise."""
    done = subprocess.run(command(*words), capture_output=True, text=True, timeout=HANG_SECONDS)
    return done.stderr.strip().splitlines()[-1] if done.returncode == 2 else ""


def of_engines() -> list[psutil.Process]:
    """Return the engines, whoever their parents are."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "diffuserve.testing.null_engine" in words and process.username() == psutil.Process().username():
            found.append(process)
    return [process for process in found if process.environ().get(MARK) == str(FOLDER)]


def main() -> None:
    os.environ[MARK] = str(FOLDER)
    head = {"node_ip_address": HOST, "num_cpus": 1, "num_gpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    told: dict[str, Any] = {"no_room": refusal(*options(cluster.address), "--gpus-per-worker", "1")}
    nodes = [cluster.add_node(node_ip_address=HOST, num_cpus=2, num_gpus=1) for _ in range(3)]
    own = options(cluster.address)
    model = ("--model", "no-such-model", "--name", "none")
    told["no_model"] = refusal(*own[: own.index("--engine-command")], "--gpus-per-worker", "1", *model)
    words = command(*own, "--gpus-per-worker", "1", "--min", "2", "--max", "3")
    with (FOLDER / "fleet.log").open("w") as log:
        fleet = subprocess.Popen(words, stderr=log)
    told["ready"] = reached(lambda: len(live()) == 2)

    jobs = [
        ask("/v1/jobs", {"model": "null", "input": {"prompt": f"star {n}"}})["id"] for n in range(NUM_JOBS)
    ]
    status = subprocess.run(command("status", *own, "--json"), capture_output=True, text=True, check=True)
    rows = json.loads(status.stdout)["data"]
    told["placements"] = sorted(row["placement"] for row in rows)
    victim = next(node for node in nodes if node.node_id == rows[0]["detail"])
    before = set(live())
    cluster.remove_node(victim, allow_graceful=False)
    told["replaced"] = reached(lambda: len(set(live()) - before) == 1 and len(live()) == 2)

    fleet.send_signal(signal.SIGKILL)  # without the loop they work on, and the next one finds them
    fleet.wait()
    known = set(live())
    ended = lambda: all(ask(f"/v1/jobs/{job}")["status"] in _ENDED for job in jobs)  # noqa: E731
    told["ended"] = reached(ended)
    told["statuses"] = sorted({ask(f"/v1/jobs/{job}")["status"] for job in jobs})
    with (FOLDER / "next.log").open("w") as log:
        fleet = subprocess.Popen(words, stderr=log)
    told["found_again"] = reached(lambda: "placed: 2" in (FOLDER / "next.log").read_text())
    told["same_workers"] = known == set(live())

    fleet.terminate()
    told["code"] = fleet.wait(HANG_SECONDS)
    told["workers_left"] = live()
    told["engines_left"] = not reached(lambda: not of_engines())
    ray.init(address=cluster.address, log_to_driver=False)
    told["gpus_free"] = reached(lambda: ray.available_resources().get("GPU") == 2.0)
    ray.shutdown()
    print(json.dumps(told))
    for node in [*nodes, cluster.head_node]:
        if node is not victim:
            node.kill_all_processes(check_alive=False, allow_graceful=False)


if __name__ == "__main__":
    main()
