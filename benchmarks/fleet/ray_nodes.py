"""Nodes of Ray on loopback, in an environment that has Ray: orders are lines of JSON on stdin.

`{"do": NAME, …}` calls a method of `RayNodes` with the other values; each answer is a line of JSON on stdout.
"""

import json
import os
import sys
import time
from contextlib import suppress
from typing import Any

import psutil
import ray
from ray.cluster_utils import Cluster
from ray.core.generated.autoscaler_pb2 import DrainNodeReason
from ray.util.placement_group import placement_group_table

_HOST = "127.0.0.2"  # Ray would replace 127.0.0.1 by an address that other machines reach
_NAMESPACE = "diffuserve"


class RayNodes:
    """A head without room for workers, and nodes of one CPU each, by their ids."""

    def __init__(self) -> None:
        head = {"node_ip_address": _HOST, "num_cpus": 0, "num_gpus": 0, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._nodes: dict[str, Any] = {}
        ray.init(self._cluster.address, namespace=_NAMESPACE, log_to_driver=False, logging_level="ERROR")

    def start(self, count: int) -> str:
        """Add nodes; return the address of the cluster."""
        for _ in range(count):
            node = self._cluster.add_node(wait=False, node_ip_address=_HOST, num_cpus=1, num_gpus=0)
            self._nodes[node.node_id] = node
        self._cluster.wait_for_nodes()
        return str(self._cluster.address)

    def placed(self, fleet: str) -> dict[str, str]:
        """Return the node of each worker of a fleet, by its name at the control plane."""
        prefix = f"{_NAMESPACE}/{fleet}/"
        groups = [group for group in placement_group_table().values() if group["name"].startswith(prefix)]
        placed = [group for group in groups if group["state"] == "CREATED"]
        return {group["name"].replace("/", "-"): _node_of(group) for group in placed}

    def announce(self, node: str, seconds: float) -> None:
        """Have Ray place nothing on a node from now on, and its workers drain."""
        gcs = ray._raylet.GcsClient(address=self._cluster.address)
        reason = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        gcs.drain_node(node, reason, "taken away", int(1_000 * (time.time() + seconds)))
        for group in placement_group_table().values():
            if group["state"] == "CREATED" and _node_of(group) == node:
                with suppress(ValueError):  # it has ended by itself
                    ray.get_actor(group["name"]).drain.remote()

    def lose(self, node: str) -> None:
        """Kill a node with all that it has started."""
        lost = self._nodes.pop(node)
        raylets = [info.process.pid for info in lost.all_processes["raylet"]]
        started = [each for pid in raylets for each in psutil.Process(pid).children(recursive=True)]
        self._cluster.remove_node(lost, allow_graceful=False)
        for process in started:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def stop(self) -> None:
        """End the cluster."""
        ray.shutdown()
        for node in [*self._nodes.values(), self._cluster.head_node]:
            node.kill_all_processes(check_alive=False, allow_graceful=False)


def _node_of(group: Any) -> str:
    [node] = group["bundles_to_node_id"].values()
    return str(node)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Ray prints is no answer
    nodes = RayNodes()
    try:
        for line in sys.stdin:
            order = json.loads(line)
            print(json.dumps(getattr(nodes, order.pop("do"))(**order)), file=answers, flush=True)
    finally:
        nodes.stop()


if __name__ == "__main__":
    main()
