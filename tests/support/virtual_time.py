"""An event loop whose clock jumps to the next timer, so that hours of backoff pass in milliseconds."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on a loop of its own. Raise `RuntimeError` if it waits for something that never comes.

    Sockets, child processes and threads still take their own time; use none of them.
    """
    with asyncio.Runner(loop_factory=_VirtualTimeLoop) as runner:
        return runner.run(main)


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Make an async test run in virtual time."""

    @wraps(test)
    def run(*arguments: P.args, **options: P.kwargs) -> T:
        return run_in_virtual_time(test(*arguments, **options))

    return run


def now() -> float:
    """Return the virtual time in seconds."""
    return asyncio.get_running_loop().time()


class _VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self.now


class _JumpingSelector(selectors.DefaultSelector):
    """Advances the loop's clock by the time that it would have waited."""

    def __init__(self, loop: _VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(0)
        if not events:
            if timeout is None:
                raise RuntimeError("every task waits, and no timer is set")
            self._loop.now += timeout
        return events
