"""`diffuserve fleet slurm` on a cluster of a test's own."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.fleet_plane import OWN, ControlPlane
from support.slurm_cluster import SlurmCluster
from support.waiting import HANG_SECONDS

KEY = "key-of-the-fleet-alone"


class SlurmFleet:
    """The command, with the same options each time that it is called; `end` ends what it has begun."""

    def __init__(
        self, folder: Path, cluster: SlurmCluster, plane: ControlPlane, worker: Sequence[str]
    ) -> None:
        self._folder = folder
        self._environment = os.environ | OWN | cluster.environment | {"XDG_STATE_HOME": str(folder / "state")}
        self._environment["DIFFUSERVE_API_KEY"] = KEY
        fleet = ("--name", "test", "--gpus-per-worker", "1", "--every", "0.5", "--server", plane.url)
        self._options = (*fleet, "--device", "cpu", *worker)
        self._processes: list[subprocess.Popen[str]] = []

    def start(self, *words: str, sbatch: Sequence[str] = ("--partition=gpu",)) -> subprocess.Popen[str]:
        """Keep a fleet, in a process of its own."""
        command = self._command(words, sbatch)
        self._processes.append(subprocess.Popen(command, env=self._environment, text=True))
        return self._processes[-1]

    def run(self, *words: str, sbatch: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        """Call the command, and wait for its end."""
        return subprocess.run(
            self._command(words, sbatch),
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=False,
        )

    def workers(self) -> list[dict[str, Any]]:
        """Return the workers as the command shows them."""
        done = self.run("status", "--json")
        assert done.returncode == 0, done.stderr
        rows: list[dict[str, Any]] = json.loads(done.stdout)["data"]
        return rows

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def _command(self, words: Sequence[str], sbatch: Sequence[str]) -> list[str]:
        given = ("--", f"--chdir={self._folder}", *sbatch) if sbatch else ()
        return [sys.executable, "-m", "diffuserve", "fleet", "slurm", *self._options, *words, *given]


def name_at_plane(worker: str) -> str:
    """Return what the control plane calls a worker of the fleet, by its name at Slurm."""
    return f"diffuserve-test-{worker.replace('_', '-')}"
