"""Workers as actors of Ray, each in a placement group of its own.

The placement groups say which workers there are and which wait for room: Ray's autoscaler brings nodes for
those that wait. They outlive this process, and Ray starts their actors anew where a node was lost.
"""

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from diffuserve.domain.errors import ServerUnavailable
from diffuserve.fleet.launcher import FAILED_SECONDS, FleetPlacement, FleetWorker
from diffuserve.fleet.ray_worker import FleetFailure, RayNode, RayWorker, RayWorkerSetup

NAMESPACE = "diffuserve"
"""Namespace of the actors, in which other programs of the cluster do not look."""
_ASK_SECONDS = 1.0
_GONE = FleetFailure("its actor is gone; Ray's dashboard has the reason", cannot_start=False)

P = ParamSpec("P")
T = TypeVar("T")


def _of_ray(
    method: "Callable[Concatenate[RayLauncher, P], T]",
) -> "Callable[Concatenate[RayLauncher, P], T]":
    """Have a method raise `ServerUnavailable` for the errors of Ray."""

    @wraps(method)
    def call(self: "RayLauncher", /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(self, *args, **kwargs)
        except ray.exceptions.RayError as error:
            raise ServerUnavailable(f"Ray: {error}") from error

    return call


class RayLauncher:
    """Workers of a fleet on the cluster that this process is connected to, by their names there."""

    def __init__(self, setup: RayWorkerSetup) -> None:
        self._prefix = f"{NAMESPACE}/{setup.fleet}/"
        self._setup = setup
        self._asked: dict[str, Any] = {}
        self._failed_at: dict[str, float] = {}

    @_of_ray
    def workers(self) -> Sequence[FleetWorker]:
        groups = self._groups()
        waiting = {name: group for name, group in groups.items() if group["state"] != "CREATED"}
        failures = self._failures([name for name in groups if name not in waiting])
        self._remove_long_failed(failures)
        return [
            _fleet_worker(name, group, name in waiting, failures.get(name)) for name, group in groups.items()
        ]

    @_of_ray
    def start(self, count: int) -> None:
        for _ in range(count):
            self._start(f"{self._prefix}{secrets.token_hex(4)}")

    @_of_ray
    def withdraw(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(ValueError):  # it is gone already
                remove_placement_group(ray.util.get_placement_group(name))

    @_of_ray
    def drain(self) -> None:
        workers = self.workers()
        self.withdraw(worker.name for worker in workers if worker.placement is not FleetPlacement.PLACED)
        for worker in workers:
            with suppress(ValueError):
                ray.get_actor(worker.name, NAMESPACE).drain.remote()

    @_of_ray
    def kill(self) -> None:
        self.withdraw(self._groups())

    def _groups(self) -> Mapping[str, Mapping[str, Any]]:
        """Return what Ray tells of the fleet's placement groups, by name."""
        table = placement_group_table().values()
        own = [group for group in table if group["name"].startswith(self._prefix)]
        return {group["name"]: group for group in own if group["state"] != "REMOVED"}

    def _start(self, name: str) -> None:
        """Ask for a place, and for the actors in it, which wait until it is there."""
        setup = self._setup
        room = {"CPU": setup.cpus, **({"GPU": setup.gpus} if setup.gpus else {})}
        strategy = "STRICT_PACK" if setup.nodes == 1 else "STRICT_SPREAD"
        group = placement_group([room] * setup.nodes, strategy, name=name, lifetime="detached")
        for rank in range(setup.nodes):
            kind: Any = ray.remote(RayNode if rank else RayWorker)
            actor = kind.options(
                name=f"{name}/{rank}" if rank else name,
                namespace=NAMESPACE,
                lifetime="detached",
                num_cpus=setup.cpus,
                num_gpus=setup.gpus,
                max_restarts=-1,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, rank),
            )
            actor.remote(name, *([rank] if rank else []), setup)

    def _failures(self, placed: Sequence[str]) -> Mapping[str, FleetFailure]:
        """Ask the placed workers; one that does not respond has not failed, as far as is known."""
        failures = {}
        for name in placed:
            if name not in self._asked:
                try:
                    self._asked[name] = ray.get_actor(name, NAMESPACE).failure.remote()
                except ValueError:
                    failures[name] = _GONE
        asked = {self._asked[name]: name for name in placed if name in self._asked}
        answered = ray.wait(list(asked), num_returns=len(asked), timeout=_ASK_SECONDS)[0] if asked else ()
        for reference in answered:
            del self._asked[asked[reference]]
            with suppress(ray.exceptions.RayError):  # it is being started anew
                if (failure := ray.get(reference)) is not None:
                    failures[asked[reference]] = failure
        return failures

    def _remove_long_failed(self, failures: Iterable[str]) -> None:
        """Free the places of those that could not do it themselves."""
        now = time.monotonic()
        self._failed_at = {name: self._failed_at.get(name, now) for name in failures}
        self.withdraw(name for name, since in self._failed_at.items() if now - since > FAILED_SECONDS)


def _fleet_worker(
    name: str, group: Mapping[str, Any], is_waiting: bool, failure: FleetFailure | None
) -> FleetWorker:
    if failure is not None:
        return FleetWorker(
            name=name,
            placement=FleetPlacement.FAILED,
            detail=failure.reason,
            cannot_start=failure.cannot_start,
        )
    if is_waiting:
        room = ", ".join(f"{amount:g} {kind}" for kind, amount in group["bundles"][0].items())
        return FleetWorker(name=name, placement=FleetPlacement.WAITING, detail=f"no node has room for {room}")
    nodes = ", ".join(group["bundles_to_node_id"].values())
    return FleetWorker(name=name, placement=FleetPlacement.PLACED, detail=nodes)
