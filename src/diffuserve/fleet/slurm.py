"""Workers as jobs of Slurm, through `sbatch`, `squeue` and `scancel`."""

import logging
import shlex
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from diffuserve.agent.exit_codes import CANNOT_START
from diffuserve.domain.addresses import is_loopback
from diffuserve.domain.errors import InvalidParams, ServerUnavailable
from diffuserve.fleet.launcher import FAILED_SECONDS, FleetPlacement, FleetWorker, WorkerSetup

log = logging.getLogger(__name__)

DRAIN_SECONDS: Final = 20.0
"""A worker's drain by default: `scancel` and preemption leave it 30 s in most clusters (`KillWait`)."""
_MARGIN_SECONDS = 10.0  # from the end of a drain to that of the job
_COMMANDS = ("sbatch", "squeue", "scancel", "sinfo")
_COMMAND_SECONDS = 60.0
_KEY = "DIFFUSERVE_API_KEY"  # the fleet's own: jobs see the rest of its environment
_NO_SOURCE = "Could not establish a configuration source"
_NO_CLUSTER = "this machine is no node of a Slurm cluster (no slurm.conf)"
_NO_CLUSTER_REMEDY = "run the fleet on one, such as a login node"
_REMEDY = (
    "correct the options after --, give less by --max or --gpus-per-worker (0 for workers on CPUs), or ask "
    "the cluster's operators"
)
_OUT_OF_MEMORY = "OUT_OF_MEMORY"
_FAILED = ("FAILED", _OUT_OF_MEMORY)
"""Other ends, such as a lost node, a preemption or a time limit, are no fault of the worker's."""
_STATES = ",".join(("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", *_FAILED))
_COLUMNS = ("JobArrayID", "State", "exit_code", "EndTime", "Reason", "NodeList", "StdOut")
_FORMAT = ",".join(f"{column}:|" for column in _COLUMNS)
_OWN_OPTIONS = ("--array", "-a", "--job-name", "-J", "--requeue", "--wrap", "--signal", "--parsable")


class SlurmLauncher:
    """Workers of a fleet as elements of job arrays, each the batch script's own process."""

    def __init__(self, setup: WorkerSetup, script: str, options: Sequence[str]) -> None:
        """Jobs are submitted with these `options` of `sbatch`.

        Raise `InvalidParams` where there is no Slurm, and for options that are the fleet's own.
        """
        self._name = job_name(setup.fleet)
        self._script = script
        check_options(options)
        for command in _COMMANDS:
            if shutil.which(command) is None:
                remedy = "is not here; run the fleet where Slurm's commands are, such as on a login node"
                raise InvalidParams("fleet", command, remedy)
        signal = f"--signal=B:TERM@{setup.drain_seconds + _MARGIN_SECONDS:.0f}"
        own = (f"--job-name={self._name}", "--no-requeue", signal, "--parsable")
        output = f"--output={self._name}-%A_%a.log"
        self._options = (*_resources(setup), output, *options, *own)

    def check(self, most: int, server: str) -> None:
        """Have Slurm judge an array of `most` workers, without queuing it, and the list of what there is.

        Raise `InvalidParams` for what it refuses, and for a URL of the control plane that nodes do not reach.
        """
        try:
            self._sbatch("--test-only", f"--array=1-{most}")
            self._squeue()
            hosts = self._run("sinfo", "--noheader", "--Node", "--format=%n").split()
        except ServerUnavailable as error:
            remedy = _NO_CLUSTER_REMEDY if _NO_CLUSTER in str(error) else _REMEDY
            raise InvalidParams("fleet", self._name, f"{error}; {remedy}") from error
        check_address(server, hosts)

    def workers(self) -> Sequence[FleetWorker]:
        return fleet_workers(self._squeue(), datetime.now())  # in local time, as Slurm's

    def start(self, count: int) -> None:
        self._sbatch(f"--array=1-{count}")

    def withdraw(self, names: Sequence[str]) -> None:
        self._run("scancel", "--state=PENDING", *names)

    def drain(self) -> None:
        """Tell the batch scripts alone: a plain `scancel` would end them for good after `KillWait`."""
        self._scancel("--state=PENDING")
        self._scancel("--batch", "--signal=TERM", "--state=RUNNING")

    def kill(self) -> None:
        self._scancel()

    def _squeue(self) -> str:
        return self._run(
            *("squeue", "--me", "--noheader", "--array", f"--name={self._name}"),
            *(f"--states={_STATES}", f"--Format={_FORMAT}", "--sort=i"),
        )

    def _scancel(self, *options: str) -> None:
        self._run("scancel", "--me", f"--name={self._name}", *options)

    def _sbatch(self, *options: str) -> str:
        return self._run("env", f"--unset={_KEY}", "sbatch", *self._options, *options, script=self._script)

    def _run(self, *command: str, script: str | None = None) -> str:
        """Return what a command of Slurm says. Raise `ServerUnavailable` with what it complains about."""
        try:
            done = subprocess.run(  # noqa: S603 (the words are arguments, and no shell reads them)
                command,
                input=script,
                capture_output=True,
                text=True,
                timeout=_COMMAND_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ServerUnavailable(f"{command[0]} does not respond") from error
        if done.returncode:
            raise ServerUnavailable(_complaint(done.stderr) or f"{command[0]} failed")
        return done.stdout


def job_name(fleet: str) -> str:
    """Return the name of a fleet's jobs."""
    return f"diffuserve-{fleet}"


def batch_script(setup: WorkerSetup, command: Sequence[str], server: str | Path) -> str:
    """Return the script of one worker, whose control plane is at a URL or at that in a file.

    The worker is the script's own process (`exec`), which is what Slurm's signals reach: SIGTERM to an `srun`
    would end its step at once. It is not queued again when its node is lost, for which Slurm takes two
    minutes: the fleet submits another.
    """
    address = f'"$(<{shlex.quote(str(server))})"' if isinstance(server, Path) else shlex.quote(server)
    name = '"$SLURM_JOB_NAME-$SLURM_ARRAY_JOB_ID-$SLURM_ARRAY_TASK_ID"'
    words = shlex.join((*command, "worker", *setup.arguments))
    return f"#!/bin/bash\nexec {words} --server {address} --name {name}\n"


def check_address(server: str, hosts: Sequence[str]) -> None:
    """Raise `InvalidParams` for a control plane on loopback if `hosts` are other machines than this one."""
    here = socket.gethostname()
    others = sorted({*hosts} - {"localhost", here, here.partition(".")[0]})
    if others and is_loopback(urlsplit(server).hostname or ""):
        remedy = f"means another machine on {others[0]}; give an address that the nodes reach"
        raise InvalidParams("server", server, remedy)


def check_options(options: Sequence[str]) -> None:
    """Raise `InvalidParams` for an option of `sbatch` that the fleet gives itself, or that is none."""
    for option in options:
        if option.partition("=")[0] in _OWN_OPTIONS:
            raise InvalidParams("fleet", option, "is given by the fleet itself; leave it out")


def fleet_workers(listed: str, now: datetime) -> list[FleetWorker]:
    """Return the workers that `squeue` lists; `now` is the cluster's local time, as the list's are.

    Those that failed more than a minute ago are left out.
    """
    rows = [line.split("|") for line in listed.splitlines() if line.strip()]
    found = [_worker(dict(zip(_COLUMNS, map(str.strip, row), strict=False)), now) for row in rows]
    return [worker for worker in found if worker is not None]


def _worker(row: Mapping[str, str], now: datetime) -> FleetWorker | None:
    name, state = row["JobArrayID"], row["State"]
    if state == "PENDING":
        return FleetWorker(name=name, placement=FleetPlacement.WAITING, detail=row["Reason"])
    if state not in _FAILED:
        is_ending = state == "COMPLETING"  # for days, where a node cannot end what hangs in its kernel
        placement = FleetPlacement.ENDING if is_ending else FleetPlacement.PLACED
        return FleetWorker(name=name, placement=placement, detail=row["NodeList"])
    if (now - datetime.fromisoformat(row["EndTime"])).total_seconds() > FAILED_SECONDS:
        return None
    job, _, element = name.partition("_")
    output = row["StdOut"].replace("%A", job).replace("%a", element)
    code, signal = divmod(int(row["exit_code"]), 1 << 8)  # a wait status
    end = f"signal {signal}" if signal else f"exit code {code}"
    if state == _OUT_OF_MEMORY:
        end = "no memory left"
    detail = f"{end} on {row['NodeList']}; its own message is in {output}"
    return FleetWorker(
        name=name, placement=FleetPlacement.FAILED, detail=detail, cannot_start=code == CANNOT_START
    )


def _complaint(stderr: str) -> str:
    """Return what a command of Slurm complains about, on a line; in a sentence without a cluster."""
    return _NO_CLUSTER if _NO_SOURCE in stderr else "; ".join(stderr.strip().splitlines())


def _resources(setup: WorkerSetup) -> tuple[str, ...]:
    """Return what a worker occupies, which options of the user may say otherwise."""
    if setup.gpus != int(setup.gpus):
        raise InvalidParams("gpus_per_worker", setup.gpus, "Slurm gives whole GPUs")
    return ("--nodes=1", *((f"--gres=gpu:{setup.gpus:.0f}",) if setup.gpus else ()))
