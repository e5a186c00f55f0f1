"""Starts engine processes: by fork once there is a zygote, and otherwise as programs."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol, TypeAlias

from diffuserve.agent.config import WorkerConfig
from diffuserve.agent.engines.zygote import Zygote, ZygoteEnded
from diffuserve.protocol.config import EngineProcessConfig

log = logging.getLogger(__name__)

_SETTLE_SECONDS = 20.0
"""Seconds for which an engine has been ready before the zygote is prepared, which takes a core for some."""
_NOT_FOUND = 127  # a shell's exit code for a command that it cannot run


class EngineExited(Exception):
    """The engine process ended before it had connected."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the engine process ended with exit code {code}")
        self.code = code


class EngineProcess(Protocol):
    """A process that runs an engine, however it was started."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    async def wait(self) -> int: ...


StartEngine: TypeAlias = Callable[[Path], Awaitable[EngineProcess]]
"""Starts an engine that connects to a Unix socket. Raises `EngineExited` if it cannot be run."""


class EngineStarter:
    """Starts the engines of one agent, of each of its models."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._zygote: Zygote | None = None
        self._is_wanted = asyncio.Event()

    async def start(self, process: EngineProcessConfig, engine_socket: Path) -> EngineProcess:
        """Start an engine that connects to this Unix socket. Raise `EngineExited` if it cannot be run."""
        if self._zygote is not None and self._zygote.can_fork(process):
            try:
                return await self._zygote.fork(process, engine_socket)
            except ZygoteEnded:
                log.warning("the zygote has ended; the engine starts as a program of its own")
        return await self._execute(process, engine_socket)

    def want_zygote(self) -> None:
        """Request a zygote, now that an engine is ready, unless there is one."""
        if self._config.has_zygote:
            self._is_wanted.set()

    async def keep_zygote(self) -> None:
        """Prepare a zygote whenever one is requested and missing."""
        while True:
            await self._is_wanted.wait()
            await asyncio.sleep(_SETTLE_SECONDS)
            self._is_wanted.clear()
            if self._zygote is None or not self._zygote.is_alive:
                await self.prepare_zygote()

    async def close(self) -> None:
        """End the zygote, and the engines that it forked."""
        if self._zygote is not None:
            await self._zygote.close()

    async def prepare_zygote(self) -> None:
        """Start a zygote; a failure is logged, since engines start without one too."""
        try:
            has_one_model = not self._config.further
            self._zygote = await Zygote.start(self._config.own_process, holds_model=has_one_model)
        except (ZygoteEnded, OSError):
            log.warning("no zygote could be prepared; a lost engine would start as a program of its own")
        else:
            log.info("a zygote is ready: a lost engine starts by fork")

    async def _execute(self, process: EngineProcessConfig, engine_socket: Path) -> EngineProcess:
        command = self._config.command_of(process)
        try:
            return await asyncio.create_subprocess_exec(
                *command, "--socket", str(engine_socket), start_new_session=True
            )
        except OSError as error:
            log.error("cannot run %s: %s", command[0], error.strerror)
            raise EngineExited(_NOT_FOUND) from error
