"""Intake of the JSON lines that batches read: stored as they are, and read when a batch names them."""

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from diffuserve.api.config import ApiConfig
from diffuserve.api.files.intake import file_name
from diffuserve.api.reads.catalog import Catalog
from diffuserve.domain.errors import DiffuserveError, InvalidParams, TooLarge
from diffuserve.domain.jobs.input_file import FilePurpose, InputFile, NewFile, new_file_id
from diffuserve.jobs.store import JobStore
from diffuserve.storage.base import ArtifactStore, input_folder, lines_key


@dataclass(frozen=True)
class LinesIntake:
    """Turns uploaded lines into files of their tenants; each upload is a file of its own."""

    store: JobStore
    artifacts: ArtifactStore
    catalog: Catalog
    config: ApiConfig

    async def add(
        self, tenant_id: str, name: str, chunks: Iterable[bytes], size: int, seconds: float | None
    ) -> InputFile:
        """Store lines, for `seconds` if that is given, and else as long as the longest-lived jobs.

        Raise `InvalidParams` for an empty file, `TooLarge`, `FilesFull` and `ServerUnavailable`.
        """
        if not size:
            raise InvalidParams("file", name, "is empty; send JSON lines")
        most = self.config.max_lines_bytes
        if size > most:
            raise TooLarge(f"file: it has more than {most:,} bytes; send its lines in several files")
        plan = await self.catalog.plan(tenant_id)
        new = await self.stored(tenant_id, FilePurpose.BATCH, name, _each(chunks), most)
        try:
            return await self.store.files.add(new, seconds or self.usual_seconds, plan)
        except DiffuserveError:
            await self.artifacts.delete(input_folder(new.id))
            raise

    @property
    def usual_seconds(self) -> float:
        """Seconds for which files of batches are kept by default."""
        return self.store.config.longest_kept

    async def stored(
        self, tenant_id: str, purpose: FilePurpose, name: str, chunks: AsyncIterator[bytes], max_bytes: int
    ) -> NewFile:
        """Store lines that have no row yet. Raise `TooLarge` and `ServerUnavailable`."""
        file_id = new_file_id()
        uploaded = await self.artifacts.put(lines_key(file_id), chunks, max_bytes)
        return NewFile(
            id=file_id,
            tenant_id=tenant_id,
            filename=file_name(name),
            size_bytes=uploaded.size_bytes,
            width=0,
            height=0,
            sha256=uploaded.sha256,
            purpose=purpose,
        )


async def _each(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
