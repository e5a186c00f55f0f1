"""Files as tenants, workers and the reaper use them."""

from collections.abc import Collection

import sqlalchemy as sa

from diffuserve.domain.errors import FileNotKnown
from diffuserve.domain.jobs.input_file import FilePurpose, InputFile, NewFile, is_file_id
from diffuserve.domain.tenant import Plan
from diffuserve.jobs.database import queries
from diffuserve.jobs.database.connections import IDS, Database
from diffuserve.jobs.database.writer import Writer
from diffuserve.jobs.files.commands import AddFile, DeleteFile, KeepFile, files, job_files
from diffuserve.jobs.files.records import file_of


class FileStore:
    """Files of tenants. Every method that takes a `tenant_id` accepts `None`, which matches every tenant.

    Every method raises `ServerUnavailable` while the database is unreachable.
    """

    def __init__(self, database: Database, writer: Writer) -> None:
        self._database = database
        self._writer = writer

    async def keep(self, new: NewFile, seconds: float) -> InputFile | None:
        """Return the tenant's file of this `sha256`, kept for `seconds` more; `None` if it has none."""
        return await self._writer.run(KeepFile(new, seconds))

    async def add(self, new: NewFile, seconds: float, plan: Plan) -> InputFile:
        """Enter a file that is stored already; return the tenant's file of this `sha256`.

        Raise `FilesFull` or `TooLarge`.
        """
        return await self._writer.run(AddFile(new, seconds, plan))

    async def get(self, file_id: str, tenant_id: str | None = None) -> InputFile:
        """Return the file. Raise `FileNotKnown` also for a file of another tenant."""
        found = await self.get_many([file_id], tenant_id)
        if not found:
            raise FileNotKnown(f"no file {file_id!r}")
        return found[file_id]

    async def get_many(self, file_ids: Collection[str], tenant_id: str | None = None) -> dict[str, InputFile]:
        """Return those of the files that exist, by id; the lines of batches as well."""
        wanted = {file_id for file_id in file_ids if is_file_id(file_id)}
        statement = sa.select(files).where(files.c.id.in_(IDS))
        if tenant_id is not None:
            statement = statement.where(files.c.tenant_id == tenant_id)
        rows = await queries.rows_of(self._database, statement, wanted)
        return {row.id: file_of(row) for row in rows}

    async def of_job(self, job_id: str) -> list[InputFile]:
        """Return the files that a job names, those that are gone left out."""
        named = sa.select(files).join(job_files, job_files.c.file_id == files.c.id)
        rows = await self._database.rows(named.where(job_files.c.job_id == job_id).order_by(files.c.id))
        return [file_of(row) for row in rows]

    async def list_files(
        self,
        *,
        tenant_id: str | None = None,
        after: str | None = None,
        limit: int = 50,
        purposes: Collection[FilePurpose] = (FilePurpose.VISION,),
        oldest_first: bool = False,
    ) -> list[InputFile]:
        """Return at most `limit` files of these purposes, newest first, that come after the file `after`."""
        order = files.c.id if oldest_first else files.c.id.desc()
        page = sa.select(files).where(files.c.purpose.in_(sorted(purposes))).order_by(order).limit(limit)
        if tenant_id is not None:
            page = page.where(files.c.tenant_id == tenant_id)
        if after is not None:
            page = page.where(files.c.id > after if oldest_first else files.c.id < after)
        return [file_of(row) for row in await self._database.rows(page)]

    async def delete(self, file_id: str, tenant_id: str | None = None) -> None:
        """Forget a file. Raise `FileNotKnown`, or `FileInUse` while a job that has not ended needs it."""
        if not is_file_id(file_id):
            raise FileNotKnown(f"no file {file_id!r}")
        await self._writer.run(DeleteFile(file_id, tenant_id))
