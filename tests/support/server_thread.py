"""A real control plane in a thread of its own, for commands that run in the test's thread."""

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from diffuserve.cli.servers.server import running_server
from diffuserve.domain.jobs.job import VIDEO_GENERATE
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.jobs.store import JobStore
from diffuserve.settings import Settings
from support.clips import complete_clip
from support.hand_worker import HAND_SPEC, HandWorker
from support.waiting import HANG_SECONDS

T = TypeVar("T")


class ServerThread:
    """A server on a free port, stopped at the end of the block.

    With `has_worker` a worker generates images of one pixel, and clips of a few bytes. It fails jobs with the
    prompt `fail` and leaves those with the prompt `wait` running.
    """

    def __init__(self, settings: Settings, *, has_worker: bool = True, spec: ModelSpec = HAND_SPEC) -> None:
        self._settings = settings
        self._spec = spec
        self._has_worker = has_worker
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._is_up.wait(HANG_SECONDS), "the server did not start"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(HANG_SECONDS)

    @property
    def address(self) -> str:
        """URL of the server."""
        return self._server.address

    @property
    def store(self) -> JobStore:
        """Job store of the server; `call` awaits its methods."""
        return self._server.plane.store

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work` in the server's event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(HANG_SECONDS)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with AsyncExitStack() as stack:
            self._server = await stack.enter_async_context(running_server(self._settings))
            http = httpx.AsyncClient(base_url=self.address, trust_env=False)
            await stack.enter_async_context(http)
            work = asyncio.create_task(_work(http, self._spec) if self._has_worker else asyncio.sleep(0))
            self._is_up.set()
            await self._stop.wait()
            work.cancel()
            with suppress(asyncio.CancelledError):
                await work


async def _work(http: httpx.AsyncClient, spec: ModelSpec) -> None:
    worker = await HandWorker.register(http, [spec])
    while True:
        for lease in await worker.claim(num_jobs=8, wait=5.0):
            await worker.report(lease, 1, 4)
            if lease.input["prompt"] == "fail":
                await worker.fail(lease)
            elif lease.kind == VIDEO_GENERATE and lease.input["prompt"] != "wait":
                await complete_clip(worker, lease)
            elif lease.input["prompt"] != "wait":
                await worker.complete(lease)
