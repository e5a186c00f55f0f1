"""Intake of input images: each is read and judged in another process, and stored."""

import hashlib
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from diffuserve.api.config import ApiConfig
from diffuserve.api.files.pixel_budget import PixelBudget
from diffuserve.api.reads.catalog import Catalog
from diffuserve.domain.errors import DiffuserveError, ImageBlocked, InvalidParams, TooLarge
from diffuserve.domain.jobs.input_file import InputFile, NewFile, new_file_id
from diffuserve.domain.safety import Action
from diffuserve.jobs.security.audit import judged_input
from diffuserve.jobs.store import JobStore
from diffuserve.media.input_image import USUAL_INPUT_PIXELS
from diffuserve.safety.processes.fair_slots import FairSlots
from diffuserve.safety.processes.intake_pool import IntakePool, Mode, ReadImage, UnreadableImage
from diffuserve.storage.base import ArtifactStore, input_folder, input_key
from diffuserve.telemetry.metrics import ControlMetrics

_AT_ONCE = 4  # images whose decoded files are held in memory
_MAX_STORED_BYTES = 1 << 30  # far above what the pixels of any image take
_CHUNK_BYTES = 1 << 18


@dataclass(frozen=True)
class Received:
    """A file as a client sends it: its field in the request, its name, and its bytes."""

    field: str
    name: str
    data: bytes
    mode: Mode = "RGB"


@dataclass(frozen=True)
class FileIntake:
    """Turns clients' uploads into files of their tenants. Equal pixels are one file of a tenant."""

    pool: IntakePool
    store: JobStore
    artifacts: ArtifactStore
    catalog: Catalog
    config: ApiConfig
    metrics: ControlMetrics
    budget: PixelBudget
    turns: FairSlots = field(default_factory=lambda: FairSlots(_AT_ONCE))

    async def add(self, tenant_id: str, received: Received) -> InputFile:
        """Return the tenant's file of an image.

        Raise `InvalidParams` if it is no image, `ImageBlocked` after adding an audit entry, `FilesFull`,
        `RateLimited` while the tenant's pixel budget is used up, `TooLarge`, and `ServerUnavailable`.
        """
        self.check_size(received.field, received.name, len(received.data))
        self.metrics.input_bytes.inc(len(received.data))
        with self._counted():
            async with self.turns.turn(tenant_id):
                image = await self._read(tenant_id, received)
                await self._check_verdict(tenant_id, received, image)
                return await self._store(tenant_id, received, image)

    def check_size(self, field: str, name: str, num_bytes: int) -> None:
        """Raise `TooLarge` for a file of too many bytes, and `InvalidParams` for an empty one."""
        most = self.config.max_input_file_bytes
        if num_bytes > most:
            raise TooLarge(f"{field}: the image has more than {most:,} bytes; send a smaller one, or a JPEG")
        if not num_bytes:
            raise InvalidParams(field, name, "is empty; send an image")

    @contextmanager
    def _counted(self) -> Iterator[None]:
        started_at = time.perf_counter()
        try:
            yield
        except DiffuserveError as error:
            self.metrics.input_files.labels(error.code).inc()
            raise
        self.metrics.intake_seconds.observe(time.perf_counter() - started_at)
        self.metrics.input_files.labels("stored").inc()

    async def _read(self, tenant_id: str, received: Received) -> ReadImage:
        """Read an image, and count its pixels; an unreadable one counts as an image of the largest size."""
        plan, num_pixels = await self.catalog.plan(tenant_id), await self._max_pixels()
        await self.budget.check(tenant_id, plan)
        try:
            image = await self.pool.read(received.data, tenant_id, received.mode, num_pixels)
            num_pixels = image.width * image.height
        except UnreadableImage as error:
            raise InvalidParams(received.field, received.name, str(error)) from error
        finally:
            await self.budget.charge(tenant_id, plan, num_pixels)
        return image

    async def _max_pixels(self) -> int:
        """Return the pixels of the largest accepted image: the default, or a model's larger limit."""
        models = await self.catalog.models()
        return max([USUAL_INPUT_PIXELS, *(served.spec.max_pixels for served in models.values())])

    async def _check_verdict(self, tenant_id: str, received: Received, image: ReadImage) -> None:
        if image.verdict is None or image.filter is None:
            return
        self.metrics.count_input_verdict(image.verdict)
        if image.verdict.action is Action.ALLOW:
            return
        await self.store.audit.note(judged_input(tenant_id, image.verdict, image.filter))
        if image.verdict.action is Action.BLOCK:
            raise ImageBlocked(received.field, image.verdict.category)

    async def _store(self, tenant_id: str, received: Received, image: ReadImage) -> InputFile:
        new = NewFile(
            id=new_file_id(),
            tenant_id=tenant_id,
            filename=file_name(received.name),
            size_bytes=len(image.file),
            width=image.width,
            height=image.height,
            sha256=hashlib.sha256(image.file).hexdigest(),
            verdict=image.verdict,
        )
        seconds = self.config.input_file_retention_seconds
        known = await self.store.files.keep(new, seconds)
        if known is not None:
            return known
        async with self._put(new, image.file):
            return await self.store.files.add(new, seconds, await self.catalog.plan(tenant_id))

    @asynccontextmanager
    async def _put(self, new: NewFile, content: bytes) -> AsyncIterator[None]:
        """Store the file, and delete it again if entering it within the block fails."""
        await self.artifacts.put(input_key(new.id), _chunks(content), _MAX_STORED_BYTES)
        try:
            yield
        except DiffuserveError:
            await self.artifacts.delete(input_folder(new.id))
            raise


def file_name(name: str) -> str:
    """Return the stored form of a client's file name: the last part, without unprintable characters."""
    last = name.replace("\\", "/").rpartition("/")[2]
    shown = "".join(character for character in last if character.isprintable())
    return shown[:200].encode("utf-8", "ignore").decode() or "image"


async def _chunks(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), _CHUNK_BYTES):
        yield content[start : start + _CHUNK_BYTES]
