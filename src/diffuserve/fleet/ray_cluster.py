"""A cluster of Ray: connecting to it, and refusing what its nodes cannot do before any worker is started."""

import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any

import grpc
import ray
from ray._private.grpc_utils import init_grpc_channel
from ray._private.services import canonicalize_bootstrap_address
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from diffuserve.domain.errors import InvalidParams, ServerUnavailable
from diffuserve.fleet.ray_launcher import NAMESPACE
from diffuserve.fleet.ray_worker import RayWorkerSetup, complaint_of_version

_MAX_ASKED = 4  # nodes are usually alike
_ASK_SECONDS = 180.0
_CONNECT_SECONDS = 10.0
_CHECK_SECONDS = 120.0


def connect(address: str | None) -> None:
    """Join the cluster at an address, or the one on this machine.

    Raise `InvalidParams` if there is none, or if its versions of Ray or Python, or its token, are others.
    """
    found = address or canonicalize_bootstrap_address("auto")
    if found is None or not _responds(found):
        remedy = (
            "no cluster of Ray responds there; give the HOST:PORT of its head by --address or RAY_ADDRESS, "
            "or start one by `ray start --head`"
        )
        raise InvalidParams("address", found or "auto", remedy)
    try:
        ray.init(found, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        remedy = f"{reason}; run the fleet with the cluster's own versions of Ray and Python, and its token"
        raise InvalidParams("address", found, remedy) from error


def _responds(address: str) -> bool:
    """Return whether something speaks gRPC at HOST:PORT: Ray itself would try for many minutes."""
    with closing(init_grpc_channel(address)) as channel:
        try:
            grpc.channel_ready_future(channel).result(_CONNECT_SECONDS)
        except grpc.FutureTimeoutError:
            return False
    return True


def check_cluster(setup: RayWorkerSetup, grows: bool) -> None:
    """Raise `InvalidParams` if no node is large enough for a worker, or if nodes cannot run it.

    Only one that `grows` by itself may have no such node yet: Ray tells nobody whether it has an autoscaler.
    """
    nodes = [node for node in ray.nodes() if node["Alive"]]
    suited = [node for node in nodes if _has_room(node["Resources"], setup)]
    if len(suited) < setup.nodes and not grows:
        raise InvalidParams("gpus_per_worker", f"{setup.gpus:g}", _no_room(nodes, setup))
    for node, complaint in _complaints(suited[:_MAX_ASKED], setup):
        raise InvalidParams("fleet", f"node {node['NodeManagerAddress']}", complaint)


def _has_room(resources: Mapping[str, float], setup: RayWorkerSetup) -> bool:
    return resources.get("GPU", 0) >= setup.gpus and resources.get("CPU", 0) >= setup.cpus


def _no_room(nodes: Iterable[Mapping[str, Any]], setup: RayWorkerSetup) -> str:
    found = {
        f"{node['Resources'].get('GPU', 0):g} GPUs and {node['Resources'].get('CPU', 0):g} CPUs"
        for node in nodes
    }
    return (
        f"{setup.nodes} of the cluster's nodes must have so many and {setup.cpus:g} CPUs, and they have "
        f"{', '.join(sorted(found))}; add nodes, give less by --gpus-per-worker (0 for workers on CPUs) and "
        "--cpus-per-worker, or say by --grows that an autoscaler brings such nodes"
    )


def _complaints(
    nodes: Sequence[Mapping[str, Any]], setup: RayWorkerSetup
) -> Iterable[tuple[Mapping[str, Any], str]]:
    """Yield what nodes object to; those that do not respond in time have nothing to say."""
    task: Any = ray.remote(complaint_of_node)
    asked = {}
    for node in nodes:
        here = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ask = task.options(num_cpus=0, max_retries=0, scheduling_strategy=here)
        asked[ask.remote(setup.version, setup.arguments)] = node
    answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_ASK_SECONDS) if asked else ((), ())
    for reference in answered:
        try:
            complaint = ray.get(reference)
        except ray.exceptions.RayTaskError as error:  # such as a package that the node lacks
            complaint = f"cannot import this version of diffuserve ({_last_line(error)}); install it there"
        except ray.exceptions.RayError as error:
            raise ServerUnavailable(f"Ray: {error}") from error
        if complaint:
            yield asked[reference], complaint


def complaint_of_node(version: str, arguments: Sequence[str]) -> str:
    """Return why a worker with these arguments would not start on this node, "" if it would.

    A node that is too busy to say it in time objects to nothing.
    """
    if complaint := complaint_of_version(version):
        return complaint
    all_gpus = ("env", "--unset=CUDA_VISIBLE_DEVICES")  # Ray hides them from what has asked for none
    try:
        done = subprocess.run(  # noqa: S603 (the words are arguments, and no shell reads them)
            [*all_gpus, sys.executable, "-m", "diffuserve", "worker", "--check", *arguments],
            capture_output=True,
            text=True,
            timeout=_CHECK_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ""
    return "" if done.returncode == 0 else _last_line(done.stderr).removeprefix("error: ")


def _last_line(error: object) -> str:
    return str(error).strip().rpartition("\n")[2]
