"""What a cluster manager with its nodes does for the trace: it keeps a fleet, and loses machines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.fleet.trace import LEAST, MOST
from benchmarks.shared.workloads import CHECKPOINT

FLEET = "bench"
NOTICE_SECONDS = 10.0
"""A machine that is taken away is announced so long before; its worker drains within it."""
LEAVE_SECONDS = 5.0
"""A worker that is not needed leaves after so long without a job."""


class ClusterManager(Protocol):
    """Nodes on loopback, which take one order at a time. Workers are named as at the control plane."""

    @property
    def command(self) -> Sequence[str]:
        """The command that keeps the fleet, without the options that all fleets share."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables of that command."""
        ...

    @property
    def more(self) -> Sequence[str]:
        """What follows the options that all fleets share."""
        ...

    def placed(self) -> Mapping[str, str]:
        """Return the node of each worker that it has placed and still counts."""
        ...

    def lose(self, node: str) -> None:
        """End a node, and all that runs on it, at once."""
        ...

    def announce(self, node: str) -> None:
        """Announce that a node goes within `NOTICE_SECONDS`, as this manager does it."""
        ...


@dataclass(frozen=True)
class FleetCommand:
    """The command of a fleet on a cluster manager, of workers on the CPU that take one job at a time."""

    manager: ClusterManager
    server: str

    @property
    def words(self) -> list[str]:
        """The command's words."""
        where = ("--server", self.server, "--model", CHECKPOINT.name, "--name", FLEET)
        size = ("--min", str(LEAST), "--max", str(MOST), "--every", "1")
        worker = ("--device", "cpu", "--max-jobs", "1", "--drain-seconds", f"{NOTICE_SECONDS:.0f}")
        leaving = ("--leave-when-idle", f"{LEAVE_SECONDS:.0f}")
        return [*self.manager.command, *where, *size, *worker, *leaving, *self.manager.more]
