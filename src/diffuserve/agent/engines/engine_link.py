"""The agent's end of its connection to one engine process, from the process's start to its death."""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from diffuserve.agent.engines.engine_starter import EngineExited, EngineProcess, StartEngine
from diffuserve.agent.private_folder import PrivateFolder
from diffuserve.protocol.crash_record import read_crash_record
from diffuserve.protocol.messages import (
    MAX_LINE_BYTES,
    FromEngine,
    Message,
    StopEngine,
    ToEngine,
    decode,
    encode,
)
from diffuserve.protocol.peer_messages import PeersTold

log = logging.getLogger(__name__)

_CONNECT_SECONDS = 300.0
_STOP_SECONDS = 5.0


class EngineLink:
    """A running engine process, its stream of messages, and a private folder for its files."""

    def __init__(
        self,
        process: EngineProcess,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        folder: PrivateFolder,
    ) -> None:
        self._process, self._reader, self._writer = process, reader, writer
        self._folder = folder

    @classmethod
    async def start(cls, start_engine: StartEngine) -> "EngineLink":
        """Start an engine and wait until it connects. Raise `EngineExited` if it does not."""
        folder = PrivateFolder()
        try:
            return cls(*await _connect(start_engine, folder.path / "engine.sock"), folder)
        except BaseException:
            folder.delete()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    async def messages(self) -> AsyncIterator[FromEngine]:
        """Yield the engine's messages until it is dead."""
        with contextlib.suppress(ConnectionError):
            while line := await self._reader.readline():
                message: Message = decode(line)
                assert isinstance(message, FromEngine)
                yield message

    def send(self, message: ToEngine | PeersTold) -> None:
        """Send without waiting; does nothing once the engine is dead, which ends `messages`."""
        if not self._writer.is_closing():
            self._writer.write(encode(message))

    def job_folder(self, attempt: str) -> Path:
        """Return the folder for the files of `attempt`, which exists from now on."""
        folder = self._folder.path / attempt
        folder.mkdir(exist_ok=True)
        return folder

    def drop_folder(self, attempt: str) -> None:
        """Delete the files of an attempt whose lease was lost."""
        shutil.rmtree(self._folder.path / attempt, ignore_errors=True)

    def suspects(self) -> frozenset[str]:
        """Return the attempts that the engine, now dead, was working on."""
        return read_crash_record(self._folder.path)

    def kill(self) -> None:
        """Send SIGKILL, which also ends an engine that is stopped or hangs."""
        _kill(self._process)

    async def stop(self) -> None:
        """Let the engine save its cost fit and exit; kill it after five seconds."""
        self.send(StopEngine())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await self._process.wait()
        await self.close()

    async def close(self) -> int:
        """Kill the engine if it still runs, delete its files, and return its exit code."""
        self.kill()
        try:
            return await self._process.wait()
        finally:
            self._writer.close()
            self._folder.delete()


async def _connect(
    start_engine: StartEngine, socket: Path
) -> tuple[EngineProcess, asyncio.StreamReader, asyncio.StreamWriter]:
    connected: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
    connected = asyncio.get_running_loop().create_future()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not connected.done():
            connected.set_result((reader, writer))

    server = await asyncio.start_unix_server(accept, socket, limit=MAX_LINE_BYTES)
    try:
        process = await start_engine(socket)
        await _wait_for_connection(connected, process)
    finally:
        server.close()
    return process, *connected.result()


async def _wait_for_connection(connected: asyncio.Future[Any], process: EngineProcess) -> None:
    """Wait until the engine has connected. Raise `EngineExited` if it ends, or takes too long."""
    died: asyncio.Task[int] = asyncio.ensure_future(process.wait())
    either: set[asyncio.Future[Any]] = {connected, died}
    is_connected = False
    try:
        await asyncio.wait(either, timeout=_CONNECT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        is_connected = connected.done()
    finally:
        if not is_connected:  # also if this task was canceled just as the engine connected
            _kill(process)
            await died
    if not is_connected:
        raise EngineExited(died.result())


def _kill(process: EngineProcess) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            # The whole process group, as a launcher's ranks are children of the process that was started.
            os.killpg(process.pid, signal.SIGKILL)
