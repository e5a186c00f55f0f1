"""The audit: what the filters kept out or flagged, for as long as the settings say."""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from diffuserve.domain.job import NewJob
from diffuserve.domain.prompt import prompt_hash
from diffuserve.domain.safety import Action, AuditEntry, FilterInfo, ImagesRecord, Stage
from diffuserve.jobs import schema
from diffuserve.jobs.database import Database, Transaction
from diffuserve.jobs.writer import Writer

audit = schema.audit


class AuditStore:
    """Every method raises `ServerUnavailable` as the job store's do."""

    def __init__(self, database: Database, writer: Writer) -> None:
        self._database = database
        self._writer = writer

    async def note(self, entry: AuditEntry) -> None:
        await self._writer.run(_note, entry)

    async def newest(self, tenant_id: str | None = None, limit: int = 50) -> list[AuditEntry]:
        """The newest first."""
        wanted = sa.select(audit).order_by(audit.c.created_at.desc()).limit(limit)
        if tenant_id is not None:
            wanted = wanted.where(audit.c.tenant_id == tenant_id)
        return [_entry_of(row) for row in await self._database.rows(wanted)]


def blocked_prompt(tenant_id: str, prompt: str, category: str, info: FilterInfo) -> AuditEntry:
    return AuditEntry(
        tenant_id=tenant_id,
        stage=Stage.PROMPT,
        category=category,
        action=Action.BLOCK,
        filter=str(info),
        prompt_hash=prompt_hash(prompt),
    )


def flagged_prompt(job_id: str, new: NewJob) -> AuditEntry | None:
    """`None` for a prompt in which nothing was found."""
    record = new.prompt
    if record is None or record.filter is None or record.verdict.action is Action.ALLOW:
        return None
    return AuditEntry(
        tenant_id=new.tenant_id,
        stage=Stage.PROMPT,
        category=record.verdict.category,
        action=record.verdict.action,
        filter=str(record.filter),
        prompt_hash=prompt_hash(str(new.input["prompt"])),
        job_id=job_id,
    )


def judged_images(job_id: str, tenant_id: str, safety: Mapping[str, Any]) -> AuditEntry | None:
    """Of what a worker says of a job's images; `None` where all passed, or nothing looked."""
    record = ImagesRecord.from_dict(safety["image"]) if "image" in safety else None
    if record is None or record.strictest.action is Action.ALLOW:
        return None
    return AuditEntry(
        tenant_id=tenant_id,
        stage=Stage.IMAGE,
        category=record.strictest.category,
        action=record.strictest.action,
        filter=str(record.filter),
        job_id=job_id,
    )


def keep(transaction: Transaction, entries: Sequence[AuditEntry]) -> None:
    if entries:
        transaction.execute(sa.insert(audit), [_row(entry, transaction.now) for entry in entries])


def forget(transaction: Transaction) -> None:
    """What is older than the settings say."""
    until = transaction.now - transaction.config.audit_seconds
    transaction.execute(sa.delete(audit).where(audit.c.created_at <= until))


def _note(transaction: Transaction, entries: Sequence[AuditEntry]) -> Sequence[None]:
    keep(transaction, entries)
    return [None] * len(entries)


def _row(entry: AuditEntry, now: float) -> dict[str, Any]:
    return {**vars(entry), "created_at": now}


def _entry_of(row: sa.Row[Any]) -> AuditEntry:
    values = row._asdict()
    del values["id"]
    return AuditEntry(**values | {"stage": Stage(row.stage), "action": Action(row.action)})
