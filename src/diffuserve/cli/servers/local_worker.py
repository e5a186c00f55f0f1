"""The worker of `diffuserve serve`: an agent on this machine that lives as long as its server."""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from diffuserve.agent.exit_codes import CANNOT_START
from diffuserve.backoff import supervise
from diffuserve.cli.options import WORKER_SETTINGS, arguments_for
from diffuserve.cli.servers.listening import address_of, bind
from diffuserve.domain.tenant import Role
from diffuserve.settings import Settings
from diffuserve.wiring.own_worker import RESTARTS, STOP_MARGIN, log_restart, name_of, release_jobs_of

if TYPE_CHECKING:
    from diffuserve.cli.servers.server import RunningServer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Launch:
    """Options for starting the worker: a command that replaces the engine, and a file for its log."""

    engine_command: str | None = None
    log: Path | None = None


class LocalWorker:
    """Runs an agent in a child process and restarts it with backoff when it dies.

    The agent starts its engine at once, and waits with everything else for the API key that it gets through
    a pipe once the server admits it. It ends when the pipe is closed, so it never outlives this process. It
    has a session of its own, so that Ctrl-C reaches the server alone.
    """

    def __init__(self, arguments: Sequence[str], drain_seconds: float, log: Path | None) -> None:
        self._command = [sys.executable, "-m", "diffuserve", "worker", *arguments]
        self._key = ""
        self._admitted = asyncio.Event()
        self._log = log
        self._drain_seconds = drain_seconds
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self.has_started = asyncio.Event()

    def admit(self, key: str) -> None:
        """Give the worker, and its successors after restarts, this key for the server."""
        self._key = key
        self._admitted.set()

    async def run(self) -> int:
        """Keep a worker running. Return 0 once it was stopped, or the exit code of one that cannot start."""
        code = await supervise(
            self._run_once,
            RESTARTS,
            is_final=lambda code: code == CANNOT_START,
            on_restart=log_restart,
            stop=self._stopping,
        )
        return 0 if self._stopping.is_set() else code

    async def stop(self) -> None:
        """Let the worker release its jobs; kill it if that takes longer than its drain."""
        self._stopping.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(self._drain_seconds + STOP_MARGIN):
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
            self.has_started.set()
            stack.callback(asyncio.create_task(self._send_key(writer)).cancel)
            return await self._process.wait()

    async def _send_key(self, writer: int) -> None:
        await self._admitted.wait()
        with suppress(BrokenPipeError):  # it has ended meanwhile
            os.write(writer, f"{self._key}\n".encode())


@dataclass(frozen=True)
class ServerWithWorker:
    """A running server and the task of its worker, which ends early only if the worker cannot start at all.

    `known` are the ids of the workers that had registered before.
    """

    server: "RunningServer"
    worker: asyncio.Task[int]
    known: frozenset[str]


@asynccontextmanager
async def server_with_worker(
    settings: Settings, no_auth: bool, launch: Launch
) -> AsyncIterator[ServerWithWorker]:
    """Run a server and a worker within the block. The engine starts to load before the server starts."""
    settings = settings.with_adapter_store()
    with closing(bind(settings.host, settings.port)) as listener:
        async with local_worker(address_of(listener), settings, launch) as (worker, task):
            from diffuserve.cli.servers.server import (
                running_server,  # takes a second, in which the engine starts
            )

            async with running_server(settings, no_auth, listener) as server:
                known = frozenset(worker.id for worker in await server.plane.store.operations.workers())
                await release_jobs_of(server.plane.store, name_of(settings))
                worker.admit(server.plane.authenticator.admit(Role.WORKER))
                try:
                    yield ServerWithWorker(server, task, known)
                finally:
                    await worker.stop()  # before the server, to which it releases its jobs


@asynccontextmanager
async def local_worker(
    address: str, settings: Settings, launch: Launch
) -> AsyncIterator[tuple[LocalWorker, asyncio.Task[int]]]:
    """Run a worker of the server at `address` within the block, once it is started."""
    words = arguments(address, settings, launch.engine_command)
    worker = LocalWorker(words, settings.worker.drain_seconds, launch.log)
    task = asyncio.create_task(worker.run())
    try:
        await worker.has_started.wait()
        yield worker, task
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
    return [*own, *arguments_for(settings, *WORKER_SETTINGS)]
