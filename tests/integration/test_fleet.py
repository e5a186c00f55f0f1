"""Fleets on real clusters of Slurm and Ray, each of several nodes on loopback; engines generate nothing."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from support.environments import ROOT, environment
from support.slurm_cluster import SlurmCluster, slurm_cluster
from support.waiting import HANG_SECONDS, block_until

pytestmark = pytest.mark.slow

NULL_ENGINE = ("-m", "diffuserve.testing.null_engine", "--files", "1", "--seconds", "0.5")
ENGINE = shlex.join((sys.executable, *NULL_ENGINE))
KEY = "key-of-the-fleet-alone"
NUM_JOBS = 60
OWN = {"DIFFUSERVE_LEASE_SECONDS": "8", "DIFFUSERVE_HEARTBEAT_SECONDS": "2", "OMP_NUM_THREADS": "1"}


class ControlPlane:
    """A control plane in a process of its own."""

    def __init__(self, http: httpx.Client) -> None:
        self.url = str(http.base_url)
        self._http = http

    def states(self) -> Mapping[str, str]:
        """Return the states of the workers by name."""
        return {each["name"]: each["state"] for each in self._http.get("/v1/workers").json()["data"]}

    def live(self) -> set[str]:
        return {name for name, state in self.states().items() if state in ("ready", "occupied")}

    def submit(self, count: int) -> list[str]:
        bodies = [{"model": "null", "input": {"prompt": f"star {number}"}} for number in range(count)]
        return [self._http.post("/v1/jobs", json=body).json()["id"] for body in bodies]

    def statuses(self, jobs: list[str]) -> set[str]:
        return {self._http.get(f"/v1/jobs/{job}").json()["status"] for job in jobs}


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    words = ["api", "--port", "0", "--data-dir", str(tmp_path / "data"), "--prompt-filter", "none"]
    command = [sys.executable, "-m", "diffuserve", *words]
    with (
        (tmp_path / "api.log").open("w") as log,
        subprocess.Popen(
            command, env=os.environ | OWN, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with httpx.Client(base_url=url, trust_env=False, timeout=HANG_SECONDS) as http:
            yield ControlPlane(http)
        process.terminate()


class SlurmFleet:
    """The command, on a cluster of the test's own."""

    def __init__(self, folder: Path, cluster: SlurmCluster, plane: ControlPlane) -> None:
        self._folder, self._plane = folder, plane
        self._environment = os.environ | OWN | cluster.environment | {"XDG_STATE_HOME": str(folder / "state")}
        self._environment["DIFFUSERVE_API_KEY"] = KEY

    def command(self, *words: str, sbatch: tuple[str, ...] = ()) -> list[str]:
        worker = (
            "--server",
            self._plane.url,
            "--device",
            "cpu",
            "--max-jobs",
            "2",
            "--engine-command",
            ENGINE,
        )
        fleet = ("--name", "test", "--gpus-per-worker", "1", "--every", "0.5")
        options = ("--", f"--chdir={self._folder}", *sbatch) if sbatch else ()
        return [sys.executable, "-m", "diffuserve", "fleet", "slurm", *worker, *fleet, *words, *options]

    def start(self) -> subprocess.Popen[str]:
        words = self.command("--min", "2", "--max", "3", sbatch=("--partition=gpu",))
        return subprocess.Popen(words, env=self._environment, text=True)

    def run(self, *words: str, sbatch: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        command = self.command(*words, sbatch=sbatch)
        return subprocess.run(
            command, env=self._environment, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
        )


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path / "slurm", "n1", "n2", "n3") as cluster:
        yield cluster


def test_on_slurm_a_lost_node_loses_no_job_and_a_stopped_fleet_leaves_nothing(
    tmp_path: Path, slurm: SlurmCluster, plane: ControlPlane
) -> None:
    fleet = SlurmFleet(tmp_path, slurm, plane)
    process = fleet.start()
    block_until(lambda: len(plane.live()) == 2)
    first = plane.live()
    jobs = plane.submit(NUM_JOBS)

    [one, other] = json.loads(fleet.run("status", "--json").stdout)["data"]
    assert {one["placement"], other["placement"]} == {"placed"}
    assert KEY not in environments_of_workers()
    slurm.kill_node(one["detail"])
    lost = f"diffuserve-test-{one['name'].replace('_', '-')}"
    block_until(lambda: len(plane.live()) == 2 and lost not in plane.live())
    second = plane.live()
    assert len(first & second) == 1

    slurm.say("scancel", other["name"])  # it drains, and another takes its place
    [drained] = first & second
    block_until(lambda: len(plane.live()) == 2 and drained not in plane.states())
    block_until(lambda: plane.statuses(jobs) == {"succeeded"})

    done = fleet.run("stop")
    assert (done.returncode, process.wait(HANG_SECONDS)) == (0, 0), done.stderr
    assert slurm.say("squeue", "-h") == ""
    assert set(plane.states()) <= {lost}
    assert plane.live() == set()


def test_what_slurm_cannot_give_is_refused_before_anything_is_submitted(
    tmp_path: Path, slurm: SlurmCluster, plane: ControlPlane
) -> None:
    fleet = SlurmFleet(tmp_path, slurm, plane)
    for words, sbatch, reason in (
        ((), ("--partition=none",), "invalid partition"),
        (("--gpus-per-worker", "2"), ("--partition=gpu",), "not available"),
        (("--min", "0"), ("--partition=gpu",), "give --min 1"),
        (("--server", "http://127.0.0.1:9"), ("--partition=gpu",), "give its URL with --server"),
    ):
        done = fleet.run(*words, sbatch=sbatch)
        assert done.returncode in (1, 2)
        assert reason in done.stderr
    assert slurm.say("squeue", "-h", "--states=all") == ""


def test_workers_that_cannot_start_end_the_fleet_with_the_log_that_says_why(
    tmp_path: Path, slurm: SlurmCluster, plane: ControlPlane
) -> None:
    fleet = SlurmFleet(tmp_path, slurm, plane)
    program = f"{sys.executable} -m diffuserve"
    engine = ("--engine-command", "/no/such/engine")
    done = fleet.run(
        "--command", program, "--worker-key-file", "/no/key", *engine, sbatch=("--partition=gpu",)
    )
    assert done.returncode == 2
    [log] = tmp_path.glob("diffuserve-test-*.log")
    assert str(log) in done.stderr
    assert "/no/key" in log.read_text(encoding="utf-8")
    assert slurm.say("squeue", "-h") == ""


def environments_of_workers() -> str:
    """Return what the workers of Slurm's jobs see, as one text."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if "SLURM_ARRAY_JOB_ID" in (seen := process.environ()):
                found.append(str(seen))
    assert found
    return "".join(found)


def test_on_ray_a_lost_node_loses_no_job_and_an_ended_fleet_leaves_nothing(
    tmp_path: Path, plane: ControlPlane
) -> None:
    python = environment("ray-serve", ["ray[serve]==2.60.0"]) / "bin" / "python"
    own = {
        "PYTHONPATH": str(ROOT / "src"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "RAY_health_check_period_ms": "1000",
        "XDG_STATE_HOME": str(tmp_path / "state"),
        **OWN,
    }
    done = subprocess.run(
        [python, ROOT / "tests" / "support" / "ray_fleet_program.py", plane.url, tmp_path],
        env=os.environ | own,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert "0 GPUs" in told.pop("no_room")
    assert "no-such-model" in told.pop("no_model")
    assert told == {
        "ready": True,
        "placements": ["placed", "placed"],
        "replaced": True,
        "ended": True,
        "statuses": ["succeeded"],
        "found_again": True,
        "same_workers": True,
        "code": 0,
        "workers_left": [],
        "engines_left": False,
        "gpus_free": True,
    }
