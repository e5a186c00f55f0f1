"""Jobs that read images: they enter the engine with their files, and end as cleanly without."""

import errno
from pathlib import Path
from typing import Any

import pytest

from diffuserve.domain.errors import ArtifactNotFound, DownloadFailed, LeaseLost, ServerUnavailable
from diffuserve.domain.jobs.job import Phase
from diffuserve.domain.workers.worker import ControlCommands, Lease, ReleaseCause
from diffuserve.protocol.messages import AbortJob, AddJob, JobFinished
from support.virtual_time import in_virtual_time
from support.waiting import eventually
from support.worker_fakes import AgentUnderTest, make_lease, running_agent

INPUT = {"prompt": "a star", "image": {"id": "file_1", "width": 8, "height": 8, "mode": "RGB"}}


async def fetching(worker: AgentUnderTest, **values: Any) -> Lease:
    """Let the agent claim a job, and wait until it fetches the job's images."""
    lease = make_lease(input=INPUT, **values)
    worker.plane.leases.put_nowait([lease])
    await eventually(lambda: bool(worker.plane.fetches))
    return lease


def phases(worker: AgentUnderTest) -> list[Phase]:
    return [job.phase for job in worker.agent.held.values()]


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@in_virtual_time
async def test_a_job_enters_the_engine_with_the_paths_of_its_images(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        lease = await fetching(worker)
        engine = worker.engines.started[0]
        assert engine.attempts == [], "not before its images are here"
        assert phases(worker) == [Phase.LOAD]
        worker.plane.may_fetch.set()
        await eventually(lambda: engine.attempts == ["j1-1"])
        (added,) = engine.sent_of(AddJob)
        assert added.input == lease.input
        assert added.files == {"file_1": str(tmp_path / "j1-1" / "input-0")}
        assert phases(worker) == [Phase.ENCODE]
        engine.say(JobFinished(attempt="j1-1"))
        await eventually(lambda: not worker.agent.held)
        assert files_in(tmp_path) == [], "they are deleted with the job"


@in_virtual_time
async def test_clients_see_that_a_job_loads_its_images(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        await fetching(worker)
        await eventually(lambda: bool(worker.plane.reports))
        assert worker.plane.reports[0][1].phase is Phase.LOAD


@in_virtual_time
async def test_other_jobs_do_not_wait_for_a_download_which_holds_its_place(tmp_path: Path) -> None:
    async with running_agent(tmp_path, max_jobs=3) as worker:
        await fetching(worker)
        await worker.take(make_lease("j2"))
        await eventually(lambda: worker.plane.claims[-1].num_jobs == 1)


@in_virtual_time
async def test_an_engine_that_waits_for_downloads_is_not_stuck(tmp_path: Path) -> None:
    async with running_agent(tmp_path, stall_seconds=20.0) as worker:
        await fetching(worker)
        engine = worker.engines.started[0]
        await eventually(lambda: len(worker.plane.heartbeats) > 6)  # of ten seconds each
        assert not engine.was_killed
        worker.plane.may_fetch.set()
        await eventually(lambda: engine.attempts == ["j1-1"])
        since = len(worker.plane.heartbeats)
        await eventually(lambda: len(worker.plane.heartbeats) > since)
        assert not engine.was_killed, "its time begins with its first job"
        await eventually(lambda: engine.was_killed)


@in_virtual_time
async def test_a_cancel_ends_a_download(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        await fetching(worker)
        worker.plane.commands.put_nowait(ControlCommands(cancel=("j1",)))
        await eventually(lambda: bool(worker.plane.failures) and not worker.agent.held)
        ((_, failure),) = worker.plane.failures
        assert failure.error.code == "aborted"
        worker.plane.may_fetch.set()
        engine = await worker.take(make_lease("j2"))
        assert engine.attempts == ["j2-1"]
        assert engine.sent_of(AbortJob) == []
        assert not (tmp_path / "j1-1").exists()


@in_virtual_time
async def test_a_lost_lease_ends_a_download(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        await fetching(worker)
        worker.plane.heartbeat_outcomes.append(ControlCommands(lost=("j1",)))
        await eventually(lambda: not worker.agent.held)
        engine = worker.engines.started[0]
        assert engine.dropped == ["j1-1"]
        assert engine.sent == [], "it never heard of the job"
        assert not worker.plane.failures
        assert not worker.plane.releases


@pytest.mark.parametrize(
    ("error", "code", "is_retryable"),
    [
        (ArtifactNotFound("file_1 has expired"), "artifact_not_found", False),
        (DownloadFailed("file_1 could not be fetched"), "download_failed", True),
        (ServerUnavailable("away"), "server_unavailable", True),
        (OSError(errno.ENOSPC, "No space left on device", "/tmp/private/input-0"), "download_failed", True),
    ],
)
@in_virtual_time
async def test_a_job_without_its_images_fails_alone(
    tmp_path: Path, error: Exception, code: str, is_retryable: bool
) -> None:
    async with running_agent(tmp_path) as worker:
        worker.plane.fetch_outcomes.append(error)
        worker.plane.may_fetch.set()
        worker.plane.leases.put_nowait([make_lease(input=INPUT), make_lease("j2")])
        await eventually(lambda: bool(worker.plane.failures))
        ((job_id, failure),) = worker.plane.failures
        assert (job_id, failure.error.code, failure.error.retryable) == ("j1", code, is_retryable)
        assert "/tmp" not in failure.error.message
        assert worker.engines.started[0].attempts == ["j2-1"]
        await eventually(lambda: "j1" not in worker.agent.held)
        assert not (tmp_path / "j1-1").exists()


@in_virtual_time
async def test_a_download_that_learns_of_a_lost_lease_reports_nothing(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        worker.plane.fetch_outcomes.append(LeaseLost("j1"))
        worker.plane.may_fetch.set()
        await fetching(worker)
        await eventually(lambda: not worker.agent.held)
        assert not worker.plane.failures
        assert not worker.plane.releases
        assert worker.engines.started[0].dropped == ["j1-1"]


@in_virtual_time
async def test_a_dead_engine_hands_back_downloads_as_bystanders(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        await fetching(worker)
        worker.engines.started[0].die(-9)
        await eventually(lambda: bool(worker.plane.releases))
        ((job_id, release),) = worker.plane.releases
        assert (job_id, release.cause, release.is_suspect) == ("j1", ReleaseCause.BYSTANDER, False)
        worker.plane.may_fetch.set()
        (await worker.engines.next(2)).become_ready()
        engine = await worker.take(make_lease("j2"))
        assert engine.attempts == ["j2-1"]


@in_virtual_time
async def test_a_drain_hands_back_a_download_that_takes_too_long(tmp_path: Path) -> None:
    async with running_agent(tmp_path, drain_seconds=60.0) as worker:
        await fetching(worker)
        worker.agent.drain()
        assert await worker.exit_code == 0
        ((job_id, release),) = worker.plane.releases
        assert (job_id, release.cause) == ("j1", ReleaseCause.DRAIN)
        assert files_in(tmp_path) == []


@in_virtual_time
async def test_a_drain_waits_for_a_job_whose_images_arrive_in_time(tmp_path: Path) -> None:
    async with running_agent(tmp_path, drain_seconds=60.0) as worker:
        await fetching(worker)
        worker.agent.drain()
        await eventually(lambda: worker.plane.num_drains == 1)
        worker.plane.may_fetch.set()
        engine = worker.engines.started[0]
        await eventually(lambda: engine.attempts == ["j1-1"])
        engine.say(JobFinished(attempt="j1-1"))
        assert await worker.exit_code == 0
        assert [job_id for job_id, _ in worker.plane.completions] == ["j1"]


@in_virtual_time
async def test_a_newer_lease_on_a_job_ends_the_download_for_the_older_one(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        await fetching(worker)
        worker.plane.leases.put_nowait([make_lease(lease_token=2, input=INPUT)])
        await eventually(lambda: len(worker.plane.fetches) == 2)
        worker.plane.may_fetch.set()
        engine = worker.engines.started[0]
        await eventually(lambda: bool(engine.attempts))
        assert engine.attempts == ["j1-2"]
        assert engine.dropped == ["j1-1"]
