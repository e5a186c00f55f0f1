"""Keeps an engine process running: starts it, follows its messages, kills it when stuck, restarts it."""

import asyncio
import logging
from collections.abc import Callable

from diffuserve.agent.config import WorkerConfig
from diffuserve.agent.engines.engine_link import EngineLink
from diffuserve.agent.engines.engine_starter import EngineExited, StartEngine
from diffuserve.agent.engines.watchdog import Pulse, stall_reason
from diffuserve.agent.exit_codes import describe
from diffuserve.backoff import Backoff, RestartPolicy, supervise
from diffuserve.domain.models.description import in_a_line
from diffuserve.domain.models.residency import Residency
from diffuserve.domain.safety import FilterInfo
from diffuserve.domain.workers.peers import PeerAddress, PeerReport
from diffuserve.domain.workers.worker import LoadProgress
from diffuserve.protocol.messages import (
    EngineHeartbeat,
    EngineLoading,
    EngineReady,
    EngineRefused,
    EngineReport,
    FromEngine,
    ModelAnnounced,
)
from diffuserve.protocol.peer_messages import PeerAnnounced, PeersTold

log = logging.getLogger(__name__)

_BACKOFF = Backoff(first_seconds=0.5, longest_seconds=30.0)
_HEALTHY_SECONDS = 60.0
_MAX_DEATHS_WHILE_LOADING = 3  # by the kernel, for example, when memory is short; a later attempt may fit


class EngineSupervisor:
    """Supervises one engine after another, of one model; `start_engine` starts each.

    `on_announced` is called with the first message of each engine, and returns why it must not serve, or "".
    `on_job` is called with every message about a job, and `on_ready` when an engine becomes ready.
    `on_change` is called then, and when an engine sends a heartbeat, gets stuck or has died (`link` is then
    `None`). `token_budget` is that of a ready engine, else `None`. `image_filter` describes the filter of the
    last ready engine, and `quantization` and `residency` its weights. `suspects` are the attempts that the
    last dead engine was working on. `loading` is the progress of an engine that is not ready yet. `refusal`
    is the last engine's reason for not starting.
    """

    def __init__(  # noqa: PLR0913 (what it tells of)
        self,
        config: WorkerConfig,
        start_engine: StartEngine,
        on_announced: Callable[[ModelAnnounced], str],
        on_job: Callable[[EngineReport], None],
        on_ready: Callable[[], None],
        on_change: Callable[[], None],
        is_occupied: Callable[[], bool],
    ) -> None:
        self._config, self._start_engine = config, start_engine
        self._on_announced, self._on_job = on_announced, on_job
        self._on_ready, self._on_change = on_ready, on_change
        self._is_occupied = is_occupied
        self._pulse = Pulse(0.0, 0.0)
        self._stopping = asyncio.Event()
        self.link: EngineLink | None = None
        self.token_budget: int | None = None
        self.loading: LoadProgress | None = None
        self.num_gpus, self.device_name, self.memory_limit_bytes = 0, "", 0
        self.image_filter: FilterInfo | None = None
        self.quantization: str | None = None
        self.residency: Residency | None = None
        self.last_heartbeat: EngineHeartbeat | None = None
        self.suspects: frozenset[str] = frozenset()
        self.num_deaths = 0
        self.refusal: str | None = None
        self.is_stalled = False
        self.was_ever_ready = False
        self._peer: PeerAnnounced | None = None
        self._is_unwanted = False

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def has_model(self) -> bool:
        """True while an engine has the model in memory, even if it is stuck."""
        return self.link is not None and self.token_budget is not None

    @property
    def is_ready(self) -> bool:
        return self.has_model and not self.is_stalled

    @property
    def peer_report(self) -> PeerReport | None:
        """The engine's part among the peers of its model; `None` without any."""
        if self._peer is None:
            return None
        address = PeerAddress(self._peer.host, self._peer.port)
        return PeerReport(model=self._peer.model, address=address, is_complete=self._peer.is_complete)

    def tell_peers(self, message: PeersTold) -> None:
        """Pass the control plane's advice on peers to the engine."""
        if self.link is not None:
            self.link.send(message)

    async def run(self) -> int:
        """Keep an engine running, and return the exit code of the last one.

        The last one is an engine that cannot start, or that died too often in a row.
        """
        limit = self._config.engine_restarts
        code = await supervise(
            self._run_once,
            RestartPolicy(_BACKOFF, _HEALTHY_SECONDS, max_in_a_row=limit),
            is_final=self.cannot_start,
            on_restart=self._engine_died,
            stop=self._stopping,
        )
        if limit is not None and not self.cannot_start(code) and not self._stopping.is_set():
            log.error("the engine died %d times in a row; giving up", limit + 1)
        return code

    def cannot_start(self, code: int) -> bool:
        """Return whether starting another engine is pointless.

        It is if no engine was ever ready, and the last one refused or exited by itself, or several were
        killed.
        """
        if self.was_ever_ready:
            return False
        exited = code >= 0 or self.refusal is not None
        return exited or self.num_deaths + 1 >= _MAX_DEATHS_WHILE_LOADING

    def reason(self, code: int) -> str:
        """Return why the last engine ended, in its own words or by its exit code."""
        return self.refusal or describe(code)

    async def stop(self) -> None:
        """Let the engine save its cost fit and end; it is not started again."""
        self._stopping.set()
        if self.link is not None and self.is_ready:
            await self.link.stop()

    async def watch(self) -> None:
        """Kill an engine that sends no heartbeats, or that is occupied and makes no progress."""
        while True:
            await asyncio.sleep(min(1.0, self._config.silence_seconds / 4))
            if not self.is_ready or self.link is None:
                continue
            reason = stall_reason(
                self._pulse, self._is_occupied(), asyncio.get_running_loop().time(), self._config
            )
            if reason is not None:
                log.error("the engine is stuck (%s); it is killed", reason)
                self.is_stalled = True
                self._on_change()
                self.link.kill()

    def got_work(self) -> None:
        """Record that an idle engine got its first job: it must make progress from now on."""
        self._pulse = self._pulse.after_progress(asyncio.get_running_loop().time())

    def _engine_died(self, code: int, pause_seconds: float) -> None:
        self.num_deaths += 1
        log.warning("the engine died (%s); it starts again in %.1f s", self.reason(code), pause_seconds)

    async def _run_once(self) -> int:
        """Run one engine from its start to its death, and return its exit code."""
        self.refusal, self.loading = None, LoadProgress(phase="starting")
        self._is_unwanted = False
        try:
            self.link = await EngineLink.start(self._start_engine)
        except EngineExited as error:
            return error.code
        try:
            async for message in self.link.messages():
                self._handle(message)
                if self._is_unwanted:
                    break  # nothing that it says or draws may count; it is killed below
        finally:
            link, self.link, self.token_budget = self.link, None, None
            self._peer = None
            self.suspects = link.suspects()
            self._on_change()
            code = await link.close()
        return code

    def _handle(self, message: FromEngine) -> None:
        now = asyncio.get_running_loop().time()
        match message:
            case ModelAnnounced():
                if reason := self._on_announced(message):
                    self.refusal, self._is_unwanted = reason, True
            case EngineLoading():
                self.loading = LoadProgress(**vars(message))
                self._on_change()
            case PeerAnnounced():
                self._peer = message
                self._on_change()
            case EngineReady():
                self._become_ready(message, now)
                self._on_change()
            case EngineRefused():
                self.refusal = message.reason
            case EngineHeartbeat():
                self.last_heartbeat, self._pulse = message, self._pulse.after_heartbeat(message, now)
                self._on_change()
            case _:
                self._pulse = self._pulse.after_progress(now)
                self._on_job(message)

    def _become_ready(self, ready: EngineReady, now: float) -> None:
        log.info("ready: %s", in_a_line(ready.description))
        if ready.image_filter is None:
            log.warning("NO IMAGE FILTER: every image that this worker generates is published unchecked")
        self.image_filter, self.loading = ready.image_filter, None
        self.quantization, self.residency = ready.quantization, ready.residency
        self.num_gpus, self.device_name = ready.num_gpus, ready.device_name
        self.memory_limit_bytes = ready.memory_limit_bytes
        self.token_budget, self._pulse = ready.token_budget, Pulse(now, now)
        self.is_stalled, self.was_ever_ready = False, True
        self._on_ready()
