"""A control plane in a process of its own that watches its event loop; tests run it as a program.

It prints its address and keys as a line of JSON. Each line that it reads has it print what it has seen since
the last: the longest that a timer waited for the loop's own work, and the resident memory.
"""

import asyncio
import gc
import json
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import psutil

from diffuserve.api.app import create_app
from diffuserve.api.config import ApiConfig
from diffuserve.api.server.http_server import serving
from diffuserve.cli.servers.event_loop import run
from diffuserve.cli.servers.listening import address_of, listen
from diffuserve.domain.tenant import Role
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.store import JobStore
from diffuserve.storage.local import LocalArtifactStore

_BEAT_SECONDS = 0.005


class LoopWatch:
    """Beats in an event loop, and sees how much processor time the loop's thread takes from beat to beat."""

    def __init__(self) -> None:
        self._last_at = 0.0
        self._longest = 0.0

    async def run(self) -> None:
        while True:
            self._last_at = time.thread_time()
            await asyncio.sleep(_BEAT_SECONDS)
            self._longest = max(self._longest, time.thread_time() - self._last_at)

    def longest_stall(self) -> float:
        """Return the longest time since the last call, in seconds of this thread's processor time."""
        longest, self._longest = self._longest, 0.0
        return longest


async def main(folder: Path) -> None:
    bus, watch = MemoryEventBus(), LoopWatch()
    store = JobStore(f"sqlite:///{folder}/jobs.db", bus, StoreConfig(default_plan="pro"))
    await store.open()
    app = create_app(store, LocalArtifactStore(folder / "files"), bus, ApiConfig())
    gc.freeze()  # as `diffuserve api` does
    listener = listen("127.0.0.1", 0)
    async with AsyncExitStack() as stack:
        stack.callback(listener.close)
        stack.push_async_callback(store.close)
        await stack.enter_async_context(serving(app, listener))
        keys = {role: (await store.keys.create(role))[1] for role in (Role.TENANT, Role.WORKER)}
        print(json.dumps({"url": address_of(listener), **keys}), flush=True)
        watching = asyncio.create_task(watch.run())
        while await asyncio.to_thread(sys.stdin.readline):
            seen = {"stall": watch.longest_stall(), "memory": psutil.Process().memory_info().rss}
            print(json.dumps(seen), flush=True)
        watching.cancel()


if __name__ == "__main__":
    run(main(Path(sys.argv[1])))
