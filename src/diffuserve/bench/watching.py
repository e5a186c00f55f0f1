"""A server's own figures during a load, from those that tell any: its queue, and requests in a step."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from diffuserve.bench.http import Http
from diffuserve.bench.outcomes import RequestFault

_MAX_MOMENTS = 1_000
_NOT_TOLD = "its API tells no batch size"


@dataclass(frozen=True)
class ServerState:
    """What a server says of itself. `batch_size` is None while no step was taken."""

    batch_size: float | None
    num_waiting: int
    num_running: int


@runtime_checkable
class TellsState(Protocol):
    """A target whose servers say what they are doing."""

    async def state(self, http: Http) -> ServerState:
        """Return what the server does at this moment. Raise `RequestFault`."""


@dataclass
class Watched:
    """A server's states at seconds of a load, or why there are none."""

    moments: list[tuple[float, ServerState]] = field(default_factory=list)
    unknown: str | None = None

    @property
    def mean_batch_size(self) -> float | None:
        """The mean over all moments that have one."""
        told = [state.batch_size for _, state in self.moments if state.batch_size is not None]
        return sum(told) / len(told) if told else None


@asynccontextmanager
async def watching(target: object, http: Http, period_seconds: float = 1.0) -> AsyncIterator[Watched]:
    """Ask a server for its state each second until the block ends; over a long load more rarely."""
    watched = Watched()
    if not isinstance(target, TellsState):
        watched.unknown = _NOT_TOLD
        yield watched
        return
    asking = asyncio.create_task(_watch(target, http, period_seconds, watched))
    try:
        yield watched
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def _watch(target: TellsState, http: Http, period_seconds: float, watched: Watched) -> None:
    clock, moments = asyncio.get_running_loop().time, watched.moments
    zero = clock()
    while True:
        second = clock() - zero
        try:
            moments.append((second, await target.state(http)))
        except RequestFault as error:
            if not moments:
                watched.unknown = str(error)
                return  # it never told any: a key without the role of an operator
        except (KeyError, TypeError, ValueError, AttributeError):
            watched.unknown = "its state has another form than that of this version"
            return
        if len(moments) >= _MAX_MOMENTS:
            moments[:] = moments[::2]
            period_seconds *= 2
        await asyncio.sleep(max(0.0, zero + second + period_seconds - clock()))
