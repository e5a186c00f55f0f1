"""The agent's end of its zygote: the process from which engines start in a fraction of a second."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from asyncio.subprocess import Process
from pathlib import Path

from diffuserve.protocol.config import EngineProcessConfig
from diffuserve.protocol.messages import MAX_LINE_BYTES, decode, encode
from diffuserve.protocol.zygote_messages import EngineEnded, EngineForked, ForkEngine, FromZygote, ZygoteReady

log = logging.getLogger(__name__)

_KILLED = -signal.SIGKILL


class ZygoteEnded(Exception):
    """The zygote ended, and with it all engines that it had forked."""


class ForkedEngine:
    """An engine process that the zygote forked, with the interface of `asyncio.subprocess.Process`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def returncode(self) -> int | None:
        return self._code.result() if self._code.done() else None

    async def wait(self) -> int:
        return await asyncio.shield(self._code)

    def end(self, code: int) -> None:
        """Note the exit code."""
        if not self._code.done():
            self._code.set_result(code)


class Zygote:
    """A zygote that is ready to fork engines."""

    def __init__(
        self,
        process: Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        held: EngineProcessConfig | None,
    ) -> None:
        self._process, self._reader, self._writer, self._held = process, reader, writer, held
        self._engines: dict[int, ForkedEngine] = {}
        self._forks: asyncio.Queue[ForkedEngine | None] = asyncio.Queue()
        self._one_fork_at_a_time = asyncio.Lock()
        self._listening: asyncio.Task[None] | None = None
        self.is_alive = True

    @classmethod
    async def start(cls, config: EngineProcessConfig, holds_model: bool = True) -> "Zygote":
        """Start a zygote, and wait until it is ready. Raise `ZygoteEnded` if it ends before.

        A zygote that `holds_model` may keep the weights in memory, shared by its engines, which are all of
        this configuration.
        """
        ours, its = socket.socketpair()
        with its:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "diffuserve.engine_process.start.zygote"),
                *("--config", config.to_json(), "--connection", str(its.fileno())),
                *(() if holds_model else ("--imports-only",)),
                pass_fds=[its.fileno()],
                start_new_session=True,
            )
        reader, writer = await asyncio.open_connection(sock=ours, limit=MAX_LINE_BYTES)
        zygote = cls(process, reader, writer, config if holds_model else None)
        try:
            if not isinstance(await zygote._next(), ZygoteReady):
                raise ZygoteEnded
        except BaseException:
            await zygote.close()
            raise
        zygote._listening = asyncio.create_task(zygote._listen())
        return zygote

    @property
    def pid(self) -> int:
        return self._process.pid

    def can_fork(self, config: EngineProcessConfig) -> bool:
        """Return whether an engine may be forked: of a zygote that holds a model one of that model alone."""
        return self.is_alive and self._held in (None, config)

    async def fork(self, config: EngineProcessConfig, engine_socket: Path) -> ForkedEngine:
        """Start an engine that connects to this Unix socket. Raise `ZygoteEnded` if that is not possible."""
        async with self._one_fork_at_a_time:
            self._writer.write(encode(ForkEngine(config=config.to_json(), socket=str(engine_socket))))
            engine = await self._forks.get() if self.is_alive else None
        if engine is None:
            raise ZygoteEnded
        return engine

    async def close(self) -> None:
        """End the zygote and the engines that it forked."""
        self._writer.close()
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        if self._listening is not None:
            await self._listening

    async def _listen(self) -> None:
        while (message := await self._next()) is not None:
            match message:
                case EngineForked():
                    self._engines[message.pid] = engine = ForkedEngine(message.pid)
                    self._forks.put_nowait(engine)
                case EngineEnded():
                    self._engines.pop(message.pid).end(message.code)
        self.is_alive = False
        self._forks.put_nowait(None)
        for engine in self._engines.values():
            engine.end(_KILLED)

    async def _next(self) -> FromZygote | None:
        """Return the next message, or `None` once the zygote has ended."""
        line = b""
        with contextlib.suppress(ConnectionError):
            line = await self._reader.readline()
        if not line:
            return None
        message = decode(line)
        assert isinstance(message, FromZygote)
        return message
