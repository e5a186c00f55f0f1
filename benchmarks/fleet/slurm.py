"""Slurm on loopback: real daemons of a controller and of nodes with one CPU each."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.control.processes import DIFFUSERVE
from benchmarks.fleet.manager import FLEET
from support.slurm_cluster import SlurmCluster, slurm_cluster

_TAKEN_SECONDS = 900
"""A machine that was taken away stays so, beyond the end of the trace."""


class SlurmManager:
    """A cluster of Slurm. Machines that are announced are taken by a job of a partition that preempts."""

    def __init__(self, cluster: SlurmCluster) -> None:
        self._cluster = cluster

    @property
    def command(self) -> Sequence[str]:
        return (*DIFFUSERVE, "fleet", "slurm")

    @property
    def environment(self) -> Mapping[str, str]:
        return self._cluster.environment

    @property
    def more(self) -> Sequence[str]:
        return ("--", "--partition=gpu", f"--chdir={self._cluster.folder}")

    def placed(self) -> Mapping[str, str]:
        states = "--states=CONFIGURING,RUNNING,COMPLETING"
        name = f"diffuserve-{FLEET}"
        listed = self._cluster.say("squeue", "-h", "-r", f"--name={name}", states, "-o", "%F-%K %N")
        pairs = (line.partition(" ") for line in listed.splitlines())
        return {f"{name}-{job}": node for job, _, node in pairs}

    def lose(self, node: str) -> None:
        self._cluster.kill_node(node)

    def announce(self, node: str) -> None:
        where = ("--partition=urgent", f"--nodelist={node}", "--output=/dev/null", "--chdir=/")
        self._cluster.say("sbatch", *where, "--wrap", f"exec sleep {_TAKEN_SECONDS}")


@contextmanager
def slurm(folder: Path, num_nodes: int) -> Iterator[SlurmManager]:
    """Yield Slurm with so many nodes. Raise `pytest.skip.Exception` where it is not installed."""
    names = [f"bench{os.getpid()}-{number}" for number in range(num_nodes)]  # a node's end is by its name
    with slurm_cluster(folder / "slurm", *names) as cluster:
        yield SlurmManager(cluster)
