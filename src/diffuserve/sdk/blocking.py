"""Methods of asynchronous clients, for programs that run no event loop."""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_END: Any = object()
_ENDING_SECONDS = 10.0


class LoopThread:
    """An event loop in a thread of its own, which the first call starts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = os.getpid()
        self._is_closed = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns; an exception in this thread, such as Ctrl-C, cancels it.

        What it does when it is canceled is waited for, since the program may end after it.
        """
        try:
            loop = self._started()
        except RuntimeError:
            work.close()
            raise
        has_ended = threading.Event()
        future = asyncio.run_coroutine_threadsafe(_noted(work, has_ended), loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            has_ended.wait(_ENDING_SECONDS)
            raise

    def close(self, work: Coroutine[Any, Any, None]) -> None:
        """Await `work`, unless nothing has run, and stop; every later call is refused."""
        if self._loop is None or self._is_closed:
            work.close()
        else:
            self.run(work)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._is_closed = True

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._process != os.getpid():
            raise RuntimeError("the client was made before a fork; make one in each process")
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the client is closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run, args=(self._loop,), name="diffuserve-client", daemon=True
                )
                self._thread.start()
            return self._loop


async def _noted(work: Coroutine[Any, Any, T], has_ended: threading.Event) -> T:
    try:
        return await work
    finally:
        has_ended.set()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


class BlockingClient:
    """Base of clients whose methods wait for those of an asynchronous one, in its loop."""

    def __init__(self, loop: LoopThread, client: Any) -> None:
        self._loop = loop
        self._client = client


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["BlockingClient", P], T]:
    """Return the method of a `BlockingClient` that waits for what this one returns."""

    @wraps(method)
    def call(client: BlockingClient, /, *arguments: P.args, **named: P.kwargs) -> T:
        return client._loop.run(method(client._client, *arguments, **named))

    return call


def iterating(
    method: Callable[Concatenate[Any, P], AsyncGenerator[T]],
) -> Callable[Concatenate["BlockingClient", P], Iterator[T]]:
    """Return the method of a `BlockingClient` that waits for each value that this one yields."""

    @wraps(method)
    def call(client: BlockingClient, /, *arguments: P.args, **named: P.kwargs) -> Iterator[T]:
        values = method(client._client, *arguments, **named)
        try:
            while (value := client._loop.run(_next(values))) is not _END:
                yield value
        finally:
            client._loop.run(values.aclose())

    return call


async def _next(values: AsyncGenerator[T]) -> T:
    return await anext(values, _END)
