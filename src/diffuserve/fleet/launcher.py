"""What a cluster manager does for a fleet: it starts workers, and tells which there are."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from diffuserve.domain.resource_base import Resource

FAILED_SECONDS = 60.0
"""A worker that failed keeps its place for so long: one that fails at each start is tried once a minute."""


class FleetPlacement(StrEnum):
    """Stage of a worker: it waits for room, was placed on a node, is being ended, or has failed lately.

    One that is being ended takes no jobs: another may be started in its place.
    """

    WAITING = "waiting"
    PLACED = "placed"
    ENDING = "ending"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class FleetWorker(Resource):
    """A worker as its cluster manager knows it. `detail` is its node, why it waits, or why it failed.

    `cannot_start` says that no other start would help: a model that is not there, a key that is refused.
    """

    name: str
    placement: FleetPlacement
    detail: str = ""
    cannot_start: bool = False


@dataclass(frozen=True, kw_only=True)
class FleetWorkerList(Resource):
    """Workers of a fleet."""

    data: tuple[FleetWorker, ...]


@dataclass(frozen=True, kw_only=True)
class WorkerSetup:
    """What each worker of a fleet is: the arguments of `diffuserve worker`, and what it occupies.

    `gpus` are those of each machine that it runs on; a share below 1 is of one GPU.
    """

    fleet: str
    arguments: tuple[str, ...]
    gpus: float
    drain_seconds: float


class Launcher(Protocol):
    """A cluster manager, with the workers of one fleet.

    It is asked anew at each look, so that nothing is lost with this process. Each method raises
    `ServerUnavailable` while the cluster manager does not respond.
    """

    def workers(self) -> Sequence[FleetWorker]:
        """Return the workers, oldest first; those that have left by themselves are not among them."""

    def start(self, count: int) -> None:
        """Start so many workers, which may wait for room."""

    def withdraw(self, names: Sequence[str]) -> None:
        """Take back workers that wait. One that was placed meanwhile may stay."""

    def drain(self) -> None:
        """Take back those that wait, and tell the others to finish what they can in time, and to leave."""

    def kill(self) -> None:
        """End all that are left, without a drain. Their jobs go to others when their leases run out."""
