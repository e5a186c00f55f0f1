"""Fleets on real clusters of Slurm, each of several nodes on loopback."""

import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from support.fake_family.model import num_steps, write_counted_model
from support.fleet_plane import ControlPlane, control_plane
from support.slurm_cluster import WITH_GRACE, WITHOUT_GRACE, SlurmCluster, slurm_cluster
from support.slurm_fleet import KEY, SlurmFleet, name_at_plane
from support.waiting import HANG_SECONDS, block_until

pytestmark = pytest.mark.slow

NULL_ENGINE = ("-m", "diffuserve.testing.null_engine", "--files", "1", "--seconds", "0.5")
OF_NULL_ENGINE = ("--max-jobs", "2", "--engine-command", shlex.join((sys.executable, *NULL_ENGINE)))
OF_COUNTED_MODEL = (
    *("--max-jobs", "1", "--image-filter", "none"),
    *("--checkpoint-seconds", "0.001", "--drain-seconds", "2"),
)
NUM_JOBS = 60
NUM_STEPS = 100
LONG = {"num_inference_steps": NUM_STEPS, "num_images": 5}
"""A job of the counted model that takes 20 s, by its steps alone."""
StartFleet = Callable[..., SlurmFleet]


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    with control_plane(tmp_path) as plane:
        yield plane


@pytest.fixture
def slurm(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SlurmCluster]:
    """A cluster of three nodes, which preempts as the test's parameter says."""
    preemption = getattr(request, "param", WITH_GRACE)
    with slurm_cluster(tmp_path / "slurm", "n1", "n2", "n3", preemption=preemption) as cluster:
        yield cluster


@pytest.fixture
def fleet_of(tmp_path: Path, slurm: SlurmCluster, plane: ControlPlane) -> Iterator[StartFleet]:
    """What makes a fleet, with the options of its workers; it has ended with the test."""
    with ExitStack() as ending:

        def make(*worker: str) -> SlurmFleet:
            fleet = SlurmFleet(tmp_path, slurm, plane, worker)
            ending.callback(fleet.end)
            return fleet

        yield make


def test_a_lost_node_loses_no_job_and_a_stopped_fleet_leaves_nothing(
    slurm: SlurmCluster, plane: ControlPlane, fleet_of: StartFleet
) -> None:
    fleet = fleet_of(*OF_NULL_ENGINE)
    process = fleet.start("--min", "2", "--max", "3")
    block_until(lambda: len(plane.live()) == 2)
    first = plane.live()
    jobs = plane.submit(NUM_JOBS)

    [one, other] = fleet.workers()
    assert {one["placement"], other["placement"]} == {"placed"}
    assert KEY not in environments_of_workers()
    slurm.kill_node(one["detail"])
    lost = name_at_plane(one["name"])
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


def test_at_their_time_limit_workers_hand_their_jobs_over_to_others(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    slurm: SlurmCluster,
    plane: ControlPlane,
    fleet_of: StartFleet,
) -> None:
    model = write_counted_model(tmp_path, monkeypatch)
    fleet = fleet_of("--model", str(model), *OF_COUNTED_MODEL)
    fleet.start("--min", "2", "--max", "2", sbatch=("--partition=gpu", "--time=2"))
    block_until(lambda: len(plane.live()) == 2)
    first = plane.live()
    jobs: list[str] = []

    def have_left() -> bool:
        """Keep the workers busy until they have left."""
        ended = [job for job in plane.jobs(jobs) if job["status"] == "succeeded"]
        if len(jobs) - len(ended) < 3:
            jobs.extend(plane.submit(1, "clouds", **LONG))
        return first.isdisjoint(plane.states())

    block_until(have_left)
    block_until(lambda: len(plane.live()) == 2)
    block_until(lambda: plane.statuses(jobs) == {"succeeded"})
    assert_handed_over(model, plane, jobs)


@pytest.mark.parametrize("slurm", [WITH_GRACE, WITHOUT_GRACE], indirect=True)
def test_preempted_workers_hand_their_jobs_over_to_others(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    slurm: SlurmCluster,
    plane: ControlPlane,
    fleet_of: StartFleet,
) -> None:
    model = write_counted_model(tmp_path, monkeypatch)
    fleet = fleet_of("--model", str(model), *OF_COUNTED_MODEL)
    fleet.start("--min", "3", "--max", "3")
    block_until(lambda: len(plane.live()) == 3)
    first = plane.live()
    jobs = plane.submit(3, "clouds", **LONG)
    block_until(lambda: num_steps(model) > 0.4 * 3 * NUM_STEPS)

    urgent = ("--partition=urgent", "--gres=gpu:1", "--output=/dev/null", "--wrap=sleep 5")
    slurm.say("sbatch", "--array=1-2", *urgent)
    block_until(lambda: len(first & set(plane.states())) == 1)
    block_until(lambda: len(plane.live()) == 3)
    block_until(lambda: plane.statuses(jobs) == {"succeeded"})
    assert_handed_over(model, plane, jobs)


@pytest.mark.parametrize("signals", [[signal.SIGKILL], [signal.SIGINT, signal.SIGINT]], ids=str)
def test_a_fleet_whose_process_is_gone_is_stopped_without_a_rest(
    signals: list[signal.Signals], slurm: SlurmCluster, plane: ControlPlane, fleet_of: StartFleet
) -> None:
    fleet = fleet_of(*OF_NULL_ENGINE)
    process = fleet.start("--min", "2", "--max", "3")
    block_until(lambda: len(plane.live()) == 2)
    jobs = plane.submit(NUM_JOBS)
    for each in signals:
        process.send_signal(each)
        block_until(lambda: process.poll() is not None or len(plane.live()) < 2)
    process.wait(HANG_SECONDS)
    assert slurm.processes()
    done = fleet.run("stop")
    assert done.returncode == 0, done.stderr
    assert slurm.say("squeue", "-h") == ""
    assert slurm.processes() == []
    assert plane.states() == {}
    assert plane.statuses(jobs) <= {"succeeded", "queued"}


def assert_handed_over(model: Path, plane: ControlPlane, jobs: list[str]) -> None:
    """Assert that jobs moved, and went on where they were: a move costs the steps since a checkpoint."""
    num_moves = sum(job["attempt"] for job in plane.jobs(jobs)) - len(jobs)
    assert num_moves > 0
    assert num_steps(model) <= NUM_STEPS * len(jobs) + 0.1 * NUM_STEPS * num_moves


def test_what_slurm_cannot_give_is_refused_before_anything_is_submitted(
    slurm: SlurmCluster, fleet_of: StartFleet
) -> None:
    fleet = fleet_of(*OF_NULL_ENGINE)
    for words, sbatch, reason in (
        ((), ("--partition=none",), "invalid partition"),
        (("--gpus-per-worker", "2"), ("--partition=gpu",), "--gpus-per-worker (0 for workers on CPUs)"),
        (("--max", "21"), ("--partition=gpu",), "give less by --max"),
        (("--min", "0"), ("--partition=gpu",), "give --min 1"),
        (("--server", "http://127.0.0.1:9"), ("--partition=gpu",), "give its URL with --server"),
    ):
        done = fleet.run(*words, sbatch=sbatch)
        assert done.returncode in (1, 2)
        assert reason in done.stderr
    done = fleet_of("--model", "no-such-model").run(sbatch=("--partition=gpu",))
    assert done.returncode == 2
    assert "no-such-model" in done.stderr
    assert slurm.say("squeue", "-h", "--states=all") == ""


def test_workers_that_cannot_start_end_the_fleet_with_the_log_that_says_why(
    tmp_path: Path, slurm: SlurmCluster, fleet_of: StartFleet
) -> None:
    fleet = fleet_of("--engine-command", "/no/such/engine", "--worker-key-file", "/no/key")
    program = f"{sys.executable} -m diffuserve"
    done = fleet.run("--command", program, sbatch=("--partition=gpu",))
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
