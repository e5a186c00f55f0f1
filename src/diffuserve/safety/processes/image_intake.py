"""The process that reads and judges images: it decodes a file, and stores nothing of it but pixels."""

import io
import math
import resource
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, cast

import orjson
import psutil

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.safety import Action, Verdict
from diffuserve.safety.base import ImageFilter
from diffuserve.telemetry.log_config import LogConfig
from diffuserve.telemetry.logs import configure_logs

if TYPE_CHECKING:
    from diffuserve.domain.requests.input_image import InputImage

_MEMORY_BYTES = 2 << 30
"""Memory beyond that of the filter: an image of the most pixels needs most of it while it is turned."""
_MAX_OPEN_FILES = 64


def read_forever(
    pipe: Connection,
    open_filter: Callable[[], ImageFilter | None],
    logs: LogConfig,
) -> None:
    """Read what comes through the pipe until it is closed: JSON and a file, for JSON and a file."""
    configure_logs(logs)
    from diffuserve.media import input_image  # noqa: F401  # imported before files are limited

    image_filter = open_filter()
    _limit_resources()
    pipe.send_bytes(b"1")
    while True:
        try:
            wanted, data = orjson.loads(pipe.recv_bytes()), pipe.recv_bytes()
        except EOFError:
            return
        _limit_cpu(wanted["seconds"])
        answer, file = _read(data, wanted["mode"], wanted["max_pixels"], image_filter)
        pipe.send_bytes(orjson.dumps(answer))
        if "remedy" not in answer:
            pipe.send_bytes(file)


def _read(
    data: bytes, mode: str, max_pixels: int, image_filter: ImageFilter | None
) -> tuple[dict[str, Any], bytes]:
    """Return the answer for a file, and the file to be stored unless it is refused or blocked."""
    try:
        read = _pixels(data, mode, max_pixels)
        verdict, shown = _judged(read, image_filter)
        is_blocked = verdict is not None and verdict.action is Action.BLOCK
        file = b"" if is_blocked else _png(shown)
    except InvalidParams as error:
        return {"remedy": error.remedy}, b""
    except MemoryError:
        return {"remedy": "needs too much memory to read; send a smaller image"}, b""
    answer = {
        "width": read.width,
        "height": read.height,
        "verdict": None if verdict is None else verdict.to_dict(),
        "filter": None if image_filter is None else asdict(image_filter.info),
    }
    return answer, file


def _pixels(data: bytes, mode: str, max_pixels: int) -> "InputImage":
    from diffuserve.media.input_image import read_image, read_transparency

    if mode == "alpha":
        return read_transparency("file", io.BytesIO(data), max_pixels=max_pixels)
    return read_image("file", io.BytesIO(data), cast(Any, mode), max_pixels=max_pixels)


def _png(image: "InputImage") -> bytes:
    """Return the file to be stored. Raise `InvalidParams` for one that no worker would read."""
    from diffuserve.media.input_image import MAX_INPUT_BYTES, png_bytes

    file = png_bytes(image)
    if len(file) > MAX_INPUT_BYTES:
        remedy = f"has {len(file):,} bytes as PNG; at most {MAX_INPUT_BYTES:,} are stored: send fewer pixels"
        raise InvalidParams("file", image.id, remedy)
    return file


def _judged(read: "InputImage", image_filter: ImageFilter | None) -> tuple[Verdict | None, "InputImage"]:
    """Return the verdict, and the image as it is stored: blurred if the verdict says so."""
    if image_filter is None:
        return None, read
    from diffuserve.media.input_image import as_image, input_image
    from diffuserve.safety.image import blur

    image = as_image(read).convert("RGB")
    verdict = image_filter.check(image)
    return verdict, input_image(blur(image), read.mode) if verdict.action is Action.BLUR else read


def _limit_resources() -> None:
    """Limit this process's memory and open files; a limit that is lower already stays."""
    _lower(resource.RLIMIT_AS, psutil.Process().memory_info().vms + _MEMORY_BYTES)
    _lower(resource.RLIMIT_NOFILE, _MAX_OPEN_FILES)
    _lower(resource.RLIMIT_CORE, 0)


def _limit_cpu(seconds: float) -> None:
    """Let the kernel end this process after so much more processor time, should nobody else do it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = math.ceil(used.ru_utime + used.ru_stime + seconds) + 1
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (limit if hard < 0 else min(limit, hard), hard))


def _lower(limit: int, value: int) -> None:
    _, hard = resource.getrlimit(limit)
    lowered = value if hard < 0 else min(value, hard)
    resource.setrlimit(limit, (lowered, lowered))
