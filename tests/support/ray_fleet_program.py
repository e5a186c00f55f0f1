"""Keeps a fleet on several nodes of Ray on loopback, loses a node, and prints as JSON what became of it."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import ray
from ray.cluster_utils import Cluster

from diffuserve.fleet.ray_cluster import complaint_of_node
from diffuserve.fleet.ray_launcher import RayLauncher
from diffuserve.fleet.ray_worker import RayWorkerSetup
from support.ray_fleet import (
    FOLDER,
    HANG_SECONDS,
    HOST,
    command,
    have_ended,
    live,
    mark,
    marked,
    options,
    reached,
    start_fleet,
    statuses,
    submit,
)

NUM_JOBS = 60


OTHER_RAY = (
    "import runpy, ray; ray.__version__ = '2.9.9'; runpy.run_module('diffuserve', run_name='__main__')"
)


def refusal(words: Sequence[str]) -> str:
    """Return what a fleet says that cannot be kept, and nothing if it ended otherwise."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANG_SECONDS)
    return done.stderr.strip().splitlines()[-1] if done.returncode == 2 else ""


def refusals(address: str) -> dict[str, str]:
    """Return what is said of a cluster without GPUs, of other versions, and of what is no cluster."""
    words = command(*options(address), "--gpus-per-worker", "1")
    with socket.create_server((HOST, 0)) as silent:
        host, port = silent.getsockname()[:2]
        no_ray = refusal(command(*options(f"{host}:{port}")))
    return {
        "no_room": refusal(words),
        "no_ray": no_ray,
        "other_ray": refusal([sys.executable, "-c", OTHER_RAY, *words[words.index("fleet") :]]),
        "other_diffuserve": complaint_of_node("0.0.1", ()),
    }


def failure_of_worker(version: str) -> str:
    """Return why a worker fails that a fleet of another version has started, with nobody asked before."""
    setup = RayWorkerSetup(fleet="other", arguments=(), gpus=0, drain_seconds=1.0, version=version)
    launcher = RayLauncher(setup)
    launcher.start(1)
    assert reached(lambda: any(worker.cannot_start for worker in launcher.workers()))
    [worker] = launcher.workers()
    launcher.kill()
    return worker.detail


def main() -> None:
    mark()
    head = {"node_ip_address": HOST, "num_cpus": 1, "num_gpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    told: dict[str, Any] = refusals(cluster.address)
    nodes = [cluster.add_node(node_ip_address=HOST, num_cpus=2, num_gpus=1) for _ in range(3)]
    own = options(cluster.address)
    model = ("--model", "no-such-model", "--name", "none")
    without_command = own[: own.index("--engine-command")]
    told["no_model"] = refusal(command(*without_command, "--gpus-per-worker", "1", *model))
    words = (*own, "--gpus-per-worker", "1", "--min", "2", "--max", "3")
    fleet = start_fleet("fleet.log", *words)
    told["ready"] = reached(lambda: len(live()) == 2)

    jobs = submit(NUM_JOBS)
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
    told["ended"] = reached(lambda: have_ended(jobs))
    told["statuses"] = statuses(jobs)
    fleet = start_fleet("next.log", *words)
    told["found_again"] = reached(lambda: "placed: 2" in (FOLDER / "next.log").read_text())
    told["same_workers"] = known == set(live())

    fleet.terminate()
    told["code"] = fleet.wait(HANG_SECONDS)
    told["workers_left"] = live()
    told["engines_left"] = not reached(lambda: not marked("null_engine"))
    ray.init(address=cluster.address, log_to_driver=False)
    told["other_worker"] = failure_of_worker("0.0.1")
    told["gpus_free"] = reached(lambda: ray.available_resources().get("GPU") == 2.0)
    ray.shutdown()
    print(json.dumps(told))
    for node in [*nodes, cluster.head_node]:
        if node is not victim:
            node.kill_all_processes(check_alive=False, allow_graceful=False)


if __name__ == "__main__":
    main()
