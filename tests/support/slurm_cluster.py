"""Slurm on one machine: a controller and nodes with a pretended GPU each, all on loopback."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from support.ports import free_port
from support.waiting import block_until

_CONFIG = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
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
MpiDefault=none
CommunicationParameters=NoInAddrAny
SlurmdTimeout=10
KillWait=30
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
{nodes}
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=20
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""
_NODE = (
    "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=1 RealMemory=1000 "
    "Gres=gpu:1 State=UNKNOWN"
)
_PROGRAMS = ("slurmctld", "slurmd", "sbatch")


class SlurmCluster:
    """A running cluster. `environment` makes Slurm's commands use it."""

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        self.folder, self.names = folder, names
        self.config = folder / "slurm.conf"
        self.environment = {"SLURM_CONF": str(self.config)}

    def start(self) -> None:
        (self.folder / "state").mkdir(parents=True)
        nodes = [_NODE.format(name=name, port=free_port()) for name in self.names]
        text = _CONFIG.format(folder=self.folder, port=free_port(), nodes="\n".join(nodes))
        self.config.write_text(text, encoding="utf-8")
        gres = [f"NodeName={name} Name=gpu File=/dev/null\n" for name in self.names]
        (self.folder / "gres.conf").write_text("".join(gres), encoding="utf-8")
        self.say("slurmctld", "-f", str(self.config))
        for name in self.names:
            (self.folder / f"spool.{name}").mkdir()
            self.say("slurmd", "-f", str(self.config), "-N", name)
        block_until(lambda: self.say("sinfo", "-h", "-o", "%T").split() == ["idle"])

    def say(self, *command: str) -> str:
        """Run a command of Slurm, and return its output."""
        environment = os.environ | self.environment
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    def kill_node(self, name: str) -> None:
        """End a node with everything that runs on it, by SIGKILL."""
        daemon = psutil.Process(int((self.folder / f"slurmd.{name}.pid").read_text()))
        of_node = [process for process in psutil.process_iter() if _node_of(process) == name]
        steps = [
            parent for process in of_node for parent in process.parents() if "slurmstepd" in parent.name()
        ]
        for process in {daemon, *steps, *of_node}:
            process.kill()

    def stop(self) -> None:
        for file in self.folder.glob("*.pid"):
            if psutil.pid_exists(pid := int(file.read_text())):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def slurm_cluster(folder: Path, *names: str) -> Iterator[SlurmCluster]:
    """Yield a cluster of these nodes; skip the test where Slurm is missing, or may not be started."""
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs {', '.join(missing) or 'root'}: apt-get install slurmctld slurmd slurm-client")
    cluster = SlurmCluster(folder, names)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _node_of(process: psutil.Process) -> str:
    try:
        return process.environ().get("SLURMD_NODENAME", "")
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return ""
