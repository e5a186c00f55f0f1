"""Keeps a worker of two nodes of Ray on loopback, loses one of them, and prints as JSON what became of it.

Its ranks draw with tiny-flux, over Gloo.
"""

import json
import subprocess
from typing import Any

from ray.cluster_utils import Cluster

from support.ray_fleet import (
    FOLDER,
    HANG_SECONDS,
    SERVER,
    command,
    live,
    mark,
    marked,
    reached,
    start_fleet,
    statuses,
    submit,
)

HOST = "127.0.0.1"  # the address of a network interface, at which the nodes meet


def options(address: str) -> tuple[str, ...]:
    secret = FOLDER / "secret"
    secret.write_text("0" * 64)
    secret.chmod(0o600)
    of_nodes = ("--nodes-per-worker", "2", "--node-secret-file", str(secret), "--gpus-per-worker", "1")
    where = ("--server", SERVER, "--address", address, "--name", "test", "--every", "0.5")
    return (*where, *of_nodes, "--model", "tiny-flux", "--device", "cpu", "--image-filter", "none")


def nodes_of_worker(words: tuple[str, ...]) -> list[str]:
    done = subprocess.run(command("status", *words, "--json"), capture_output=True, text=True, check=True)
    [row] = json.loads(done.stdout)["data"]
    return str(row["detail"]).split(", ")


def has_drawn() -> bool:
    jobs = submit(1, "tiny-flux")
    return reached(lambda: statuses(jobs) == ["succeeded"])


def main() -> None:
    mark()
    head = {"node_ip_address": HOST, "num_cpus": 1, "num_gpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.add_node(node_ip_address=HOST, num_cpus=2, num_gpus=1) for _ in range(3)]
    words = options(cluster.address)
    fleet = start_fleet("fleet.log", *words, "--min", "1", "--max", "1")
    told: dict[str, Any] = {"ready": reached(lambda: len(live()) == 1)}
    told["drawn"] = has_drawn()
    first, second = nodes_of_worker(words)
    told["nodes"] = len({first, second} & {node.node_id for node in nodes})
    victim = next(node for node in nodes if node.node_id == second)
    cluster.remove_node(victim, allow_graceful=False)
    told["drawn_elsewhere"] = reached(lambda: second not in nodes_of_worker(words)) and has_drawn()
    fleet.terminate()
    told["code"] = fleet.wait(HANG_SECONDS)
    told["workers_left"] = live()
    told["ranks_left"] = not reached(lambda: not marked("diffuserve.engine_process"))
    print(json.dumps(told))
    for node in [*nodes, cluster.head_node]:
        if node is not victim:
            node.kill_all_processes(check_alive=False, allow_graceful=False)


if __name__ == "__main__":
    main()
