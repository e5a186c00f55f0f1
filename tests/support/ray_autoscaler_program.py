"""Keeps a fleet on a cluster of Ray whose own autoscaler brings and takes nodes, and prints what it saw.

The autoscaler is Ray's; its provider of nodes is Ray's fake one, which starts them on this machine.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray

from support.ports import free_port
from support.ray_fleet import (
    FOLDER,
    HANG_SECONDS,
    HOST,
    ask,
    live,
    mark,
    marked,
    options,
    reached,
    start_fleet,
    statuses,
    submit,
)

MAX_NODES = 3
NUM_JOBS = 800
_HEAD = "fffffffffffffffffffffffffffffffffffffffffffffffffff00000"
_EMPTY = (
    *("setup_commands", "head_setup_commands", "worker_setup_commands", "initialization_commands"),
    *("head_start_ray_commands", "worker_start_ray_commands", "cluster_synced_files"),
    *("rsync_exclude", "rsync_filter"),
)
"""What the autoscaler wants to read, beside the rest of a cluster's configuration."""
_AUTOSCALER = {
    "RAY_FAKE_CLUSTER": "1",
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    "RAY_enable_autoscaler_v2": "1",
    "RAY_CLOUD_INSTANCE_ID": _HEAD,
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": _HEAD,
}


def configuration(address: str) -> dict[str, Any]:
    """Return a cluster without GPUs that may get nodes with one each; nodes that are idle for 6 s leave."""
    gpu = {"resources": {"CPU": 2, "GPU": 1}, "node_config": {}, "min_workers": 0, "max_workers": MAX_NODES}
    head = {"resources": {"CPU": 1, "GPU": 0}, "node_config": {}, "max_workers": 0}
    provider = {
        "type": "external",  # Ray's own name for it reads a file that its wheel lacks
        "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
        "use_node_id_as_ip": True,
        "disable_node_updaters": True,
        "disable_launch_config_check": True,
        "launch_multiple": True,
        "head_node_id": _HEAD,
        "gcs_address": address,
    }
    return {
        "cluster_name": "fleet-of-test",
        "max_workers": MAX_NODES,
        "idle_timeout_minutes": 0.1,
        "upscaling_speed": 1.0,
        "provider": provider,
        "head_node_type": "ray.head.default",
        "available_node_types": {"ray.head.default": head, "gpu": gpu},
        "auth": {},
        "docker": {},
        "file_mounts": {},
        "file_mounts_sync_continuously": False,
        **dict.fromkeys(_EMPTY, ()),
    }


def start_head(temporary: str) -> str:
    """Start the head with its autoscaler, and return its address. Ray's test cluster would end all others."""
    port = free_port()
    file = FOLDER / "autoscaling.json"
    file.write_text(json.dumps(configuration(f"{HOST}:{port}")), "utf-8")
    where = ("--head", f"--node-ip-address={HOST}", f"--port={port}", f"--temp-dir={temporary}")
    what = ("--num-cpus=1", "--num-gpus=0", "--include-dashboard=false", f"--autoscaling-config={file}")
    with (FOLDER / "head.log").open("w") as log:
        subprocess.run(
            [Path(sys.executable).with_name("ray"), "start", *where, *what],
            env=os.environ | _AUTOSCALER,
            stdout=log,
            stderr=log,
            check=True,
            timeout=HANG_SECONDS,
        )
    return f"{HOST}:{port}"


def num_nodes() -> int:
    """Return the number of nodes with a GPU."""
    return sum(node["Alive"] and node["Resources"].get("GPU", 0) > 0 for node in ray.nodes())


def submit_many() -> str:
    """Submit a batch whose predicted work is worth many workers, and return its id."""
    given = {"prompt": "star", "num_inference_steps": 100}
    items = [{"custom_id": str(number), "input": given} for number in range(NUM_JOBS)]
    return str(ask("/v1/batches", {"model": "null", "items": items})["id"])


def num_succeeded(batch: str) -> int:
    return int(ask(f"/v1/batches/{batch}")["counts"].get("succeeded", 0))


def have(nodes: int) -> bool:
    """Return whether there are so many nodes, and a worker on each."""
    return num_nodes() == len(live()) == nodes


def follow(told: dict[str, Any], address: str) -> None:
    words = (*options(address), "--gpus-per-worker", "1", "--max", str(MAX_NODES), "--grows")
    leaves = ("--leave-when-idle", "2")
    told["nodes_before"] = num_nodes()
    fleet = start_fleet("fleet.log", *words, *leaves, "--min", "1")
    told["one"] = reached(lambda: have(1))
    batch = submit_many()
    told["most"] = reached(lambda: have(MAX_NODES))
    told["succeeded"] = reached(lambda: num_succeeded(batch) == NUM_JOBS)
    told["one_again"] = reached(lambda: have(1))
    fleet.send_signal(signal.SIGTERM)
    told["code"] = fleet.wait(HANG_SECONDS)
    told["none"] = reached(lambda: have(0))

    fleet = start_fleet("next.log", *words, *leaves, "--min", "0")
    jobs = submit(1)
    told["one_for_a_job"] = reached(lambda: num_nodes() == 1)
    told["job"] = reached(lambda: statuses(jobs) == ["succeeded"])
    fleet.send_signal(signal.SIGTERM)  # by itself it leaves after some minutes without work
    told["none_again"] = fleet.wait(HANG_SECONDS) == 0 and reached(lambda: have(0))


def main() -> None:
    mark()
    told: dict[str, Any] = {}
    temporary = tempfile.mkdtemp(prefix="ray-")  # short, for the names of Ray's sockets
    try:
        address = start_head(temporary)
        ray.init(address, log_to_driver=False)
        follow(told, address)
        told["engines_left"] = len(marked("null_engine"))
    finally:
        ray.shutdown()
        for process in marked(""):
            if process.pid != os.getpid():
                process.kill()
        shutil.rmtree(temporary, ignore_errors=True)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
