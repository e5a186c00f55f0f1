"""Processes that read and judge the images that requests bring.

Decoders of images have had many bugs, and a small file may stand for gigabytes. So no byte of a stranger's
file is decoded in the server: a file that breaks, fills or stalls its process costs that process alone.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import orjson

from diffuserve.domain.codec import from_values
from diffuserve.domain.errors import ServerUnavailable
from diffuserve.domain.safety import FilterInfo, Verdict
from diffuserve.media.input_image import MAX_INPUT_PIXELS
from diffuserve.safety.base import ImageFilter
from diffuserve.safety.processes.fair_slots import FairSlots
from diffuserve.safety.processes.image_intake import read_forever
from diffuserve.safety.processes.piped_process import PipedProcess
from diffuserve.telemetry.log_config import LogConfig

log = logging.getLogger(__name__)

OpenFilter = Callable[[], ImageFilter | None]
"""Loads the image filter, in the process that uses it; it can be sent to another process."""

Mode = Literal["RGB", "L", "alpha"]
"""Form of the stored pixels: colors, a mask, or a mask that is white where the file is transparent."""

_READ_SECONDS = 30.0
_START_SECONDS = 120.0


class UnreadableImage(ValueError):
    """A file is no image that can be used; the message says why, and what to do."""


@dataclass(frozen=True)
class ReadImage:
    """An image as it is stored: a PNG file of its pixels alone, upright and without transparency.

    `verdict` is the filter's, both `None` without a filter. An image to be blocked has no `file`.
    """

    file: bytes
    width: int
    height: int
    verdict: Verdict | None = None
    filter: FilterInfo | None = None


def no_filter() -> ImageFilter | None:
    """Return `None`: every image passes."""
    return None


class IntakePool:
    """Reads images in `num_processes` processes. Each starts when it is first needed, and again if it dies.

    Tenants have turns by the seconds that their files take. A file that takes longer than `read_seconds` is
    given up, and its process ended. With an `objection` every image is refused for that reason.
    """

    def __init__(
        self,
        open_filter: OpenFilter = no_filter,
        num_processes: int = 1,
        logs: LogConfig = LogConfig(),
        *,
        read_seconds: float = _READ_SECONDS,
        objection: str = "",
    ) -> None:
        self.read_seconds = read_seconds
        self._arguments = (open_filter, logs)
        self._objection = objection
        self._turns = FairSlots(num_processes)
        self._threads = ThreadPoolExecutor(num_processes, "intake")
        self._idle: list[_Reader] = []
        self._readers: set[_Reader] = set()

    async def read(
        self, data: bytes, tenant_id: str, mode: Mode = "RGB", max_pixels: int = MAX_INPUT_PIXELS
    ) -> ReadImage:
        """Return the image in a file. Raise `UnreadableImage`, or `ServerUnavailable` without a process."""
        if self._objection:
            raise UnreadableImage(f"cannot be judged, and is refused: {self._objection}")
        loop = asyncio.get_running_loop()
        async with self._turns.turn(tenant_id):
            return await loop.run_in_executor(self._threads, self._read, data, mode, max_pixels)

    @property
    def num_reading(self) -> int:
        """Number of files that are being read."""
        return sum(reader.is_reading for reader in tuple(self._readers))

    async def close(self) -> None:
        """End the processes, whatever they do."""
        for reader in tuple(self._readers):
            reader.end()
        await asyncio.to_thread(self._threads.shutdown)

    def _read(self, data: bytes, mode: Mode, max_pixels: int) -> ReadImage:
        reader = self._take()
        try:
            image = reader.read(data, mode, max_pixels, self.read_seconds)
        except UnreadableImage:
            self._idle.append(reader)
            raise
        except (EOFError, OSError) as error:
            self._drop(reader)
            raise UnreadableImage(self._lost(reader)) from error
        self._idle.append(reader)
        return image

    def _take(self) -> "_Reader":
        while self._idle:
            reader = self._idle.pop()
            if reader.is_alive:
                return reader
            self._drop(reader)
        reader = _Reader(*self._arguments)
        self._readers.add(reader)
        try:
            reader.wait_until_ready()
        except (EOFError, OSError) as error:
            self._drop(reader)
            log.error("the process that reads images does not start (%s)", type(error).__name__)
            raise ServerUnavailable("no process that reads images starts", retry_after=5.0) from error
        return reader

    def _lost(self, reader: "_Reader") -> str:
        """Log that a process was lost, and return what its client is told."""
        if reader.is_late:
            log.warning("an input image took longer than %g s; its process was ended", self.read_seconds)
            return f"takes longer than {self.read_seconds:g} s to read; send a smaller image"
        log.warning("a process that reads images was lost with the image that it read")
        return "ends the process that reads it; save the image anew, and send that"

    def _drop(self, reader: "_Reader") -> None:
        reader.end()
        self._readers.discard(reader)


class _Reader(PipedProcess):
    """A process that reads one file at a time, and ends with the pipe to it.

    What comes back is JSON and pixels, never a pickle: a file may have taken over its process.
    """

    def __init__(self, open_filter: OpenFilter, logs: LogConfig) -> None:
        super().__init__("diffuserve-intake", read_forever, open_filter, logs)
        self.is_late = False
        self.is_reading = False

    def wait_until_ready(self) -> None:
        """Wait until the filter is loaded. Raise `EOFError` or `OSError` if the process is lost or stuck."""
        if not self._pipe.poll(_START_SECONDS):
            raise TimeoutError(f"not ready within {_START_SECONDS:g} s")
        self._pipe.recv_bytes(1)

    def read(self, data: bytes, mode: Mode, max_pixels: int, seconds: float) -> ReadImage:
        """Return the image. Raise `UnreadableImage`; `EOFError` or `OSError` if the process is lost."""
        watchdog = threading.Timer(seconds, self._give_up)
        watchdog.start()
        self.is_reading = True
        try:
            wanted = {"mode": mode, "max_pixels": max_pixels, "seconds": seconds}
            self._pipe.send_bytes(orjson.dumps(wanted))
            self._pipe.send_bytes(data)
            answer = orjson.loads(self._pipe.recv_bytes())
            if "remedy" in answer:
                raise UnreadableImage(str(answer["remedy"]))
            return from_values(ReadImage, {**answer, "file": self._pipe.recv_bytes()})
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, UnreadableImage):
                raise
            raise EOFError("the process that reads images answers nonsense") from error
        finally:
            watchdog.cancel()
            self.is_reading = False

    def _give_up(self) -> None:
        self.is_late = True
        self.kill()
