"""Keeps an engine process alive: starts it, listens to it, kills it when it is stuck, starts it again."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from diffuserve.backoff import Backoff, RestartPolicy, supervise
from diffuserve.worker.config import WorkerConfig
from diffuserve.worker.engine_link import EngineExited, EngineLink
from diffuserve.worker.messages import Beat, Done, Failed, FromEngine, Hello, Judged, Moved, Previewed, Ready
from diffuserve.worker.watchdog import Pulse, stall_reason

log = logging.getLogger(__name__)

FromJob: TypeAlias = Moved | Previewed | Judged | Done | Failed
_BACKOFF = Backoff(first_seconds=0.5, longest_seconds=30.0)
_HEALTHY_SECONDS = 60.0


class EngineSupervisor:
    """`on_job` gets every message about a job, `on_hello` each engine's first; `on_change` is told when
    an engine becomes ready, beats, gets stuck, and, with `None` for its `link`, when it is dead."""

    def __init__(
        self,
        config: WorkerConfig,
        on_hello: Callable[[Hello], None],
        on_job: Callable[[FromJob], None],
        on_change: Callable[[], None],
        is_occupied: Callable[[], bool],
    ) -> None:
        self._config = config
        self._on_hello, self._on_job, self._on_change = on_hello, on_job, on_change
        self._is_occupied = is_occupied
        self._pulse = Pulse(0.0, 0.0)
        self.link: EngineLink | None = None
        self.token_budget: int | None = None  # of an engine that is ready
        self.image_filter: Mapping[str, Any] | None = None  # of the last engine that was ready
        self.last_beat: Beat | None = None
        self.suspects: frozenset[str] = frozenset()  # attempts that the last engine was at when it died
        self.num_deaths = 0
        self.is_stalled = False
        self.was_ever_ready = False
        self._stopping = asyncio.Event()

    @property
    def is_ready(self) -> bool:
        return self.link is not None and self.token_budget is not None and not self.is_stalled

    async def run(self) -> int:
        """Keep an engine running, and return the exit code of the last one.

        The last one is an engine that could not start, or that died too often in a row.
        """
        limit = self._config.engine_restarts
        policy = RestartPolicy(_BACKOFF, _HEALTHY_SECONDS, max_in_a_row=limit)
        code = await supervise(
            self._live_once,
            policy,
            is_final=self._cannot_start,
            on_restart=self._engine_died,
            stop=self._stopping,
        )
        if limit is not None and not self._cannot_start(code) and not self._stopping.is_set():
            log.error("the engine died %d times in a row; giving up", limit + 1)
        return code

    def _cannot_start(self, code: int) -> bool:
        """Return whether the engine exited by itself, not by a signal, before any engine was ready."""
        return not self.was_ever_ready and code >= 0

    def _engine_died(self, code: int, pause_seconds: float) -> None:
        self.num_deaths += 1
        log.warning("the engine died (exit code %d); it starts again in %.1f s", code, pause_seconds)

    async def stop(self) -> None:
        """Let the engine save what it learnt; it is not started again."""
        self._stopping.set()
        if self.link is not None and self.is_ready:
            await self.link.stop()

    async def watch(self) -> None:
        """Kill an engine that gives no sign of life, or that is occupied and moves nothing."""
        while True:
            await asyncio.sleep(min(1.0, self._config.silence_seconds / 4))
            if not self.is_ready or self.link is None:
                continue
            reason = stall_reason(self._pulse, self._is_occupied(), time.monotonic(), self._config)
            if reason is not None:
                log.error("the engine is stuck (%s); it is killed", reason)
                self.is_stalled = True
                self._on_change()
                self.link.kill()

    def got_work(self) -> None:
        """An idle engine got its first job: only from now on must it move."""
        self._pulse = self._pulse.moved(time.monotonic())

    async def _live_once(self) -> int:
        """From the start of one engine to its death; gives its exit code."""
        try:
            self.link = await EngineLink.start(self._config.command)
        except EngineExited as error:
            return error.code
        try:
            async for message in self.link.messages():
                self._hear(message)
        finally:
            link, self.link, self.token_budget = self.link, None, None
            self.suspects = link.suspects()
            self._on_change()
            code = await link.close()
        return code

    def _hear(self, message: FromEngine) -> None:
        now = time.monotonic()
        match message:
            case Hello():
                self._on_hello(message)
            case Ready():
                log.info("ready: %s", " · ".join(f"{k} {v}" for k, v in message.description.items()))
                self._note_filter(message)
                self.token_budget, self._pulse = message.token_budget, Pulse(now, now)
                self.is_stalled, self.was_ever_ready = False, True
                self._on_change()
            case Beat():
                self.last_beat, self._pulse = message, self._pulse.beaten(message, now)
                self._on_change()
            case Moved() | Previewed() | Judged() | Done() | Failed():
                self._pulse = self._pulse.moved(now)
                self._on_job(message)

    def _note_filter(self, ready: Ready) -> None:
        self.image_filter = ready.image_filter
        if ready.image_filter is None:
            log.warning("NO IMAGE FILTER: every image that this worker draws is published unseen")
