"""Slurm on one machine: a controller and nodes with a pretended GPU each, all on loopback, and its munge."""

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from support.ports import free_port
from support.waiting import HANG_SECONDS, block_until

_CONFIG = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmctldPort={port}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=2,sched_interval=2,sched_min_interval=100000
ReturnToService=2
MaxArraySize=21
MpiDefault=none
CommunicationParameters=NoInAddrAny
SlurmdTimeout=10
KillWait=30
GresTypes=gpu
PreemptType=preempt/partition_prio
{preemption}
{nodes}
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""
_NODE = (
    "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=1 RealMemory=1000 "
    "Gres=gpu:1 State=UNKNOWN"
)
_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged")
WITH_GRACE = """PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
PartitionName=DEFAULT GraceTime=20"""
"""Preemption as operators should set it: the job's own signal, and then twenty seconds."""
WITHOUT_GRACE = "PreemptMode=CANCEL"
"""Preemption by Slurm's defaults: SIGTERM to all processes, and SIGKILL after `KillWait`."""


class SlurmCluster:
    """A running cluster. `environment` makes Slurm's commands use it."""

    def __init__(self, folder: Path, names: tuple[str, ...], preemption: str = WITH_GRACE) -> None:
        self.folder, self.names, self._preemption = folder, names, preemption
        self.config = folder / "slurm.conf"
        self.environment = {"SLURM_CONF": str(self.config)}

    def start(self) -> None:
        (self.folder / "state").mkdir(parents=True)
        self._start_munge()
        nodes = "\n".join(_NODE.format(name=name, port=free_port()) for name in self.names)
        text = _CONFIG.format(folder=self.folder, port=free_port(), nodes=nodes, preemption=self._preemption)
        self.config.write_text(text, encoding="utf-8")
        gres = [f"NodeName={name} Name=gpu File=/dev/null\n" for name in self.names]
        (self.folder / "gres.conf").write_text("".join(gres), encoding="utf-8")
        self.say("slurmctld", "-f", str(self.config))
        for name in self.names:
            (self.folder / f"spool.{name}").mkdir()
            self.say("slurmd", "-f", str(self.config), "-N", name)
        block_until(lambda: self.say("sinfo", "-h", "-o", "%T").split() == ["idle"])

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        files = {"key": "key", "socket": "socket", "pid": "pid", "log": "log", "seed": "seed"}
        options = [
            f"--{option}{'' if option == 'socket' else '-file'}={self.folder}/munge.{suffix}"
            for option, suffix in files.items()
        ]
        self.say("munged", "--force", *options)

    def say(self, *command: str) -> str:
        """Run a command of Slurm, and return its output. Raise `TimeoutExpired` for one that hangs."""
        with tempfile.TemporaryFile() as out:  # no pipe, which a daemon might keep open
            subprocess.run(
                command, env=os.environ | self.environment, stdout=out, check=True, timeout=HANG_SECONDS
            )
            out.seek(0)
            return out.read().decode()

    def kill_node(self, name: str) -> None:
        """End a node with everything that runs on it, by SIGKILL."""
        _kill([*self._daemons(f"slurmd.{name}"), *self._processes(name)])

    def processes(self) -> list[psutil.Process]:
        """Return what runs on the nodes, as part of jobs."""
        return [each for name in self.names for each in self._processes(name)]

    def stop(self) -> None:
        """End the cluster with everything that runs on it, by SIGKILL."""
        _kill([*self._daemons("*"), *self.processes()])

    def _daemons(self, names: str) -> Iterator[psutil.Process]:
        for file in self.folder.glob(f"{names}.pid"):
            with suppress(psutil.NoSuchProcess, ValueError):  # it has left the file behind, or an empty one
                yield psutil.Process(int(file.read_text()))

    def _processes(self, name: str) -> Iterator[psutil.Process]:
        """Yield what runs on a node, beginning with what would report its end to the controller."""
        of_node = [each for each in psutil.process_iter() if self._is_on(each, name)]
        parents = {parent for each in of_node for parent in _parents(each)}
        yield from (parent for parent in parents if "slurmstepd" in parent.name())
        yield from of_node

    def _is_on(self, process: psutil.Process, name: str) -> bool:
        """Return whether a process is of a job on a node of this cluster: others may have the same names."""
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            seen = process.environ()
            return seen.get("SLURMD_NODENAME") == name and seen.get("SLURM_CONF") == str(self.config)
        return False


@contextmanager
def slurm_cluster(folder: Path, *names: str, preemption: str = WITH_GRACE) -> Iterator[SlurmCluster]:
    """Yield a cluster of these nodes; skip the test where Slurm is missing, or may not be started."""
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        told = f"needs {', '.join(missing) or 'root'}: apt-get install slurmctld slurmd slurm-client munge"
        pytest.skip(told)
    cluster = SlurmCluster(folder, names, preemption)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _parents(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return process.parents()
    return []


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
