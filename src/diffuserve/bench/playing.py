"""The load is played: requests at their due times, whatever the server does, or so many at a time."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field

from diffuserve.bench.checks import check_outputs
from diffuserve.bench.load_request import LoadRequest
from diffuserve.bench.outcomes import Output, Reply, RequestFault, RequestOutcome, Trouble

Draw = Callable[[LoadRequest], Coroutine[None, None, Reply]]
Check = Callable[[LoadRequest, tuple[Output, ...]], None]


@dataclass(frozen=True)
class Due:
    """A request and the second of the load at which it is to be sent."""

    asked: LoadRequest
    second: float


@dataclass
class Played:
    """What was measured so far; a load that is interrupted keeps it."""

    began_ns: int = field(default_factory=time.time_ns)
    outcomes: list[RequestOutcome] = field(default_factory=list)
    num_under_way: int = 0
    num_not_ended: int = 0
    """Requests that an interruption left without an outcome."""

    @property
    def seconds(self) -> float:
        """Seconds from the first due time to the last end."""
        if not self.outcomes:
            return 0.0
        return max(each.ended for each in self.outcomes) - min(each.due for each in self.outcomes)


class Player:
    """Sends requests to one server and notes what becomes of them.

    Outputs are looked at in the threads of `checker`, since decoding pictures would hold up what arrives
    meanwhile, and its latency with it; without one, where they are. `check` raises `RequestFault` for those
    that are not what was asked for.
    """

    def __init__(
        self,
        draw: Draw,
        timeout_seconds: float,
        checker: Executor | None = None,
        check: Check = check_outputs,
    ) -> None:
        self._draw, self._check = draw, check
        self._checker = checker
        self._timeout_seconds = timeout_seconds
        self.played = Played()
        self._zero = 0.0

    async def play_open(self, dues: Iterable[Due]) -> Played:
        """Send each request at its due time: an open loop, in which a slow server gets no less to do."""
        self._zero = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            for due in dues:
                await asyncio.sleep(due.second - self._now())
                group.create_task(self._send(due))
        return self.played

    async def play_closed(self, requests: Iterator[LoadRequest], at_once: int) -> Played:
        """Send the requests so many at a time: a closed loop, as that many patient users would."""
        self._zero = asyncio.get_running_loop().time()

        async def user() -> None:
            for asked in requests:
                await self._send(Due(asked, self._now()))

        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(user())
        return self.played

    async def _send(self, due: Due) -> None:
        sent, played, reply, failure = self._now(), self.played, Reply(()), None
        played.num_under_way += 1
        try:
            reply, failure = await self._reply(due.asked)
            ended = self._now()
            failure = failure or await self._fault_of(due.asked, reply)
        except asyncio.CancelledError:
            played.num_not_ended += 1
            raise
        finally:
            played.num_under_way -= 1
        played.outcomes.append(
            RequestOutcome(
                asked=due.asked,
                due=due.second,
                sent=sent,
                ended=ended,
                phases=reply.phases,
                num_outputs=0 if failure else len(reply.outputs),
                error=failure,
            )
        )

    async def _reply(self, asked: LoadRequest) -> tuple[Reply, RequestFault | None]:
        """Return what the server sent, or why there is nothing. A fault of a response fails it alone."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await self._draw(asked), None
        except RequestFault as error:
            return Reply(()), error
        except TimeoutError:
            return Reply(()), RequestFault(Trouble.TIMEOUT)
        except Exception as error:  # whatever a server sends, it ends no load
            return Reply(()), RequestFault(Trouble.BROKEN, f"unexpected response: {error!r}"[:120])

    async def _fault_of(self, asked: LoadRequest, reply: Reply) -> RequestFault | None:
        if self._checker is None:
            return _fault_of(self._check, asked, reply)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._checker, _fault_of, self._check, asked, reply)

    def _now(self) -> float:
        return asyncio.get_running_loop().time() - self._zero


def _fault_of(check: Check, asked: LoadRequest, reply: Reply) -> RequestFault | None:
    try:
        check(asked, reply.outputs)
    except RequestFault as error:
        return error
    except Exception as error:  # broken files lead their readers to errors of many kinds
        return RequestFault(Trouble.WRONG_OUTPUT, repr(error)[:120])
    return None
