"""Real processes of a small cluster on this machine, for the chaos run and the benchmarks."""

import ctypes
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

DIFFUSERVE = (sys.executable, "-m", "diffuserve")
_STOP_SECONDS = 15.0
_PR_SET_CHILD_SUBREAPER = 36  # from linux/prctl.h
_UNBOUNDED = {
    "max_running": 1_000_000,
    "max_queued": 10_000_000,
    "highest_band": "interactive",
    "reads_per_second": None,
    "max_waits": None,
}


class Program:
    """A command that can be killed and restarted; its output goes to a single log file."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.name = name
        self._command = tuple(command)
        self._environment = {**os.environ, **environment}
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment
            )

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    @property
    def was_started(self) -> bool:
        return self._process is not None

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Kill the process with SIGKILL, and wait for its end."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """Suspend the process: connections stay open, without responses."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Stop the process with SIGTERM, then with SIGKILL if that takes too long."""
        if self._process is None or self._process.poll() is not None:
            return
        self.wake()
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def children(self) -> list[psutil.Process]:
        """Return the running descendants."""
        if not self.is_alive:
            return []
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []


def serving_environment(lease_seconds: float = 30.0, heartbeat_seconds: float = 10.0) -> dict[str, str]:
    """Return settings of a control plane whose tenant has no limits."""
    return {
        "DIFFUSERVE_LEASE_SECONDS": str(lease_seconds),
        "DIFFUSERVE_HEARTBEAT_SECONDS": str(heartbeat_seconds),
        "DIFFUSERVE_PLANS": json.dumps({"unbounded": _UNBOUNDED}),
        "DIFFUSERVE_DEFAULT_PLAN": "unbounded",
        "DIFFUSERVE_MAX_BACKLOG_SECONDS": "1e12",
    }


def api_command(port: int, data_dir: Path, database_url: str | None) -> list[str]:
    command = [*DIFFUSERVE, "api", "--port", str(port), "--data-dir", str(data_dir)]
    return [*command, "--database-url", database_url] if database_url else command


def null_agent_command(  # noqa: PLR0913 (a command has options)
    server: str,
    name: str,
    max_jobs: int,
    seconds: float,
    files: int,
    role: str = "all",
    *,
    models: Sequence[str] = ("null",),
    extra: Sequence[str] = (),
    engine_options: Sequence[str] = (),
) -> list[str]:
    """Return the command of an agent with a null engine that takes `seconds` for its part of a job."""
    engine = [sys.executable, "-m", "diffuserve.testing.null_engine"]
    engine += ["--seconds", str(seconds), "--files", str(files), *engine_options]
    options = ["--name", name, "--max-jobs", str(max_jobs), "--role", role, *extra]
    options += [word for model in models for word in ("--model", model)]
    return [*DIFFUSERVE, "worker", "--server", server, *options, "--engine-command", shlex.join(engine)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cpu_seconds(pid: int, *, with_children: bool = False) -> float:
    """Return user and system seconds of a process and its children, ended ones included."""
    process = psutil.Process(pid)
    children = process.children() if with_children else []
    live = sum(_cpu_of_child(child.pid) for child in children)
    times = process.cpu_times()  # after its children's: of one that ends meanwhile it has the time
    own = times.user + times.system
    return float(own + live + times.children_user + times.children_system) if with_children else float(own)


def _cpu_of_child(pid: int) -> float:
    try:
        return cpu_seconds(pid, with_children=True)
    except psutil.NoSuchProcess:
        return 0.0


def adopt_orphans() -> None:
    """Become the parent of daemons that are started from here: their CPU counts as the benchmark's."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
