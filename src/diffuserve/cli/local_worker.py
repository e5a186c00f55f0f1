"""The worker of `diffuserve serve`: an agent on this machine that lives as long as its server."""

import asyncio
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from diffuserve.backoff import Backoff, RestartPolicy, supervise
from diffuserve.cli.options import WORKER_OPTIONS, arguments_for
from diffuserve.cli.server import RunningServer
from diffuserve.domain.errors import LeaseLost, ServerUnavailable
from diffuserve.domain.job import JobStatus
from diffuserve.domain.tenant import Role
from diffuserve.domain.worker import Release, ReleaseCause, WorkerState
from diffuserve.jobs.store import JobStore
from diffuserve.settings import Settings
from diffuserve.worker.exit_codes import CANNOT_START

logger = logging.getLogger(__name__)

_RESTARTS = RestartPolicy(Backoff(first_seconds=0.5, longest_seconds=30.0), healthy_seconds=60.0)
_STOP_MARGIN = 15.0  # for the last uploads
_LOOK_SECONDS = 0.2
_MANY = 1_000  # more than any worker holds
_WORKING = (WorkerState.READY, WorkerState.OCCUPIED)


@dataclass(frozen=True)
class Launch:
    """Start of the worker: `engine_command` in place of the engine, and a file for its log."""

    engine_command: str | None = None
    log: Path | None = None


class LocalWorker:
    """Runs an agent in a child process and restarts it with backoff when it dies.

    The agent reads its API key from a pipe and ends when the pipe is closed, so it never outlives this
    process. It has a session of its own, so that Ctrl-C reaches the server alone.
    """

    def __init__(self, arguments: Sequence[str], key: str, drain_seconds: float, log: Path | None) -> None:
        self._command = [sys.executable, "-m", "diffuserve", "worker", *arguments]
        self._key = key
        self._log = log
        self._drain_seconds = drain_seconds
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()

    async def run(self) -> int:
        """Keep a worker running. Return 0 once it was stopped, or the exit code of one that cannot start."""
        code = await supervise(
            self._run_once,
            _RESTARTS,
            is_final=lambda code: code == CANNOT_START,
            on_restart=_log_restart,
            stop=self._stopping,
        )
        return 0 if self._stopping.is_set() else code

    async def stop(self) -> None:
        """Let the worker hand back its jobs; kill it if that takes longer than its drain."""
        self._stopping.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(self._drain_seconds + _STOP_MARGIN):
                await process.wait()
        except TimeoutError:
            logger.warning("the worker did not stop in time; killed")
            self.kill()
            await process.wait()

    def kill(self) -> None:
        self._stopping.set()
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def _run_once(self) -> int:
        reader, writer = os.pipe()
        with ExitStack() as stack:
            stack.callback(os.close, writer)
            os.write(writer, f"{self._key}\n".encode())
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                *("--parent-fd", str(reader)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=stack.enter_context(self._log.open("ab")) if self._log else None,
                pass_fds=[reader],
                start_new_session=True,
            )
            os.close(reader)
            return await self._process.wait()


def _log_restart(code: int, pause_seconds: float) -> None:
    logger.warning("the worker ended with code %d; starting another in %.1f s", code, pause_seconds)


@asynccontextmanager
async def local_worker(
    server: RunningServer, settings: Settings, launch: Launch
) -> AsyncIterator[asyncio.Task[int]]:
    """Run a worker of this server within the block.

    The task ends early, with an exit code, only if the worker cannot start at all.
    """
    key = server.plane.authenticator.admit(Role.WORKER)
    await release_jobs_of(server.plane.store, name_of(settings))
    words = arguments(server.address, settings, launch.engine_command)
    worker = LocalWorker(words, key, settings.worker.drain_seconds, launch.log)
    task = asyncio.create_task(worker.run())
    try:
        yield task
    finally:
        await worker.stop()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def arguments(address: str, settings: Settings, engine_command: str | None) -> list[str]:
    """Return the arguments of `diffuserve worker`."""
    own = ["--server", address, "--name", name_of(settings)]
    if engine_command is not None:
        own += ["--engine-command", engine_command]
    return [*own, *arguments_for(settings, *WORKER_OPTIONS)]


def name_of(settings: Settings) -> str:
    """Return a name for the worker that is the same at each start on this data folder, and unique."""
    return f"serve:{socket.gethostname()}:{settings.data_dir.resolve()}"


async def release_jobs_of(store: JobStore, name: str) -> None:
    """Release the jobs that are leased to an earlier worker of that name.

    It died with its server, so there is no need to wait until its leases expire.
    """
    dead = {worker.id for worker in await store.operations.workers() if worker.name == name}
    held = (JobStatus.RUNNING, JobStatus.CANCELING)
    for job in await store.jobs.list_jobs(statuses=held, limit=_MANY) if dead else ():
        if job.worker_id in dead:
            with suppress(LeaseLost):
                drained = Release(lease_token=job.lease_token, cause=ReleaseCause.DRAIN)
                await store.leases.release(job.id, drained)


async def wait_until_ready(
    worker: asyncio.Task[int], store: JobStore, known: set[str], timeout: float | None = None
) -> None:
    """Wait until a worker that is not among the `known` ids is ready.

    Raise `ServerUnavailable` after `timeout` seconds, or if the worker ends.
    """
    try:
        async with asyncio.timeout(timeout):
            while not await _has_new_worker(store, known):
                if worker.done():
                    raise ServerUnavailable("the worker could not start; see its log")
                await asyncio.sleep(_LOOK_SECONDS)
    except TimeoutError:
        raise ServerUnavailable(f"no worker was ready after {timeout:g} s") from None


async def _has_new_worker(store: JobStore, known: set[str]) -> bool:
    workers = await store.operations.workers()
    return any(worker.id not in known and worker.state in _WORKING for worker in workers)
