"""The audit: prompts and images that a filter blocked or flagged, kept as long as the settings say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import sqlalchemy as sa

from diffuserve.domain.codec import from_values
from diffuserve.domain.jobs.job import NewJob
from diffuserve.domain.jobs.prompt import prompt_hash
from diffuserve.domain.safety import Action, AuditEntry, FilterInfo, ImagesRecord, SafetyStage, Verdict
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.command import Command
from diffuserve.jobs.database.connections import Database, Transaction
from diffuserve.jobs.database.writer import Writer

audit = schema.audit


class AuditStore:
    """Audit entries. Every method raises `ServerUnavailable` while the database is unreachable."""

    def __init__(self, database: Database, writer: Writer) -> None:
        self._database = database
        self._writer = writer

    async def note(self, entry: AuditEntry) -> None:
        """Store an entry."""
        await self._writer.run(RecordAudit(entry))

    async def newest(self, tenant_id: str | None = None, limit: int = 50) -> list[AuditEntry]:
        """Return at most `limit` entries, newest first; `tenant_id=None` means of every tenant."""
        wanted = sa.select(audit).order_by(audit.c.created_at.desc()).limit(limit)
        if tenant_id is not None:
            wanted = wanted.where(audit.c.tenant_id == tenant_id)
        return [_entry_of(row) for row in await self._database.rows(wanted)]


@dataclass(frozen=True)
class RecordAudit(Command[None]):
    """Store an audit entry."""

    entry: AuditEntry

    @classmethod
    def apply_many(cls, transaction: Transaction, commands: Sequence[Self]) -> list[None]:
        keep(transaction, [command.entry for command in commands])
        return [None] * len(commands)


def blocked_prompt(tenant_id: str, prompt: str, category: str, info: FilterInfo) -> AuditEntry:
    """Return the entry for a prompt that `info`'s filter refused."""
    return AuditEntry(
        tenant_id=tenant_id,
        stage=SafetyStage.PROMPT,
        category=category,
        action=Action.BLOCK,
        filter=str(info),
        prompt_hash=prompt_hash(prompt),
    )


def flagged_prompt(job_id: str, new: NewJob) -> AuditEntry | None:
    """Return the entry for a submitted prompt; `None` if its filter found nothing."""
    record = new.prompt
    if record is None or record.filter is None or record.verdict.action is Action.ALLOW:
        return None
    return AuditEntry(
        tenant_id=new.tenant_id,
        stage=SafetyStage.PROMPT,
        category=record.verdict.category,
        action=record.verdict.action,
        filter=str(record.filter),
        prompt_hash=prompt_hash(str(new.input["prompt"])),
        job_id=job_id,
    )


def judged_input(tenant_id: str, verdict: Verdict, info: FilterInfo) -> AuditEntry:
    """Return the entry for an image that a request brings, which `info`'s filter found something in."""
    return AuditEntry(
        tenant_id=tenant_id,
        stage=SafetyStage.INPUT,
        category=verdict.category,
        action=verdict.action,
        filter=str(info),
    )


def judged_outputs(job_id: str, tenant_id: str, safety: Mapping[str, Any]) -> list[AuditEntry]:
    """Return the entries for what a worker reports as `safety`: none without a filter or a finding."""
    stages = (SafetyStage.IMAGE, SafetyStage.SOUND)
    records = {stage: from_values(ImagesRecord, safety[stage]) for stage in stages if stage in safety}
    return [
        _judged_output(job_id, tenant_id, stage, record)
        for stage, record in records.items()
        if record.strictest.action is not Action.ALLOW
    ]


def _judged_output(job_id: str, tenant_id: str, stage: SafetyStage, record: ImagesRecord) -> AuditEntry:
    return AuditEntry(
        tenant_id=tenant_id,
        stage=stage,
        category=record.strictest.category,
        action=record.strictest.action,
        filter=str(record.filter),
        job_id=job_id,
    )


def keep(transaction: Transaction, entries: Sequence[AuditEntry]) -> None:
    """Store entries, dated now."""
    if entries:
        transaction.execute(sa.insert(audit), [_row(entry, transaction.now) for entry in entries])


def forget(transaction: Transaction) -> None:
    """Delete the entries that are older than the settings allow."""
    until = transaction.now - transaction.config.audit_seconds
    transaction.execute(sa.delete(audit).where(audit.c.created_at <= until))


def _row(entry: AuditEntry, now: float) -> dict[str, Any]:
    return {**vars(entry), "created_at": now}


def _entry_of(row: sa.Row[Any]) -> AuditEntry:
    values = row._asdict()
    del values["id"]
    return AuditEntry(**values | {"stage": SafetyStage(row.stage), "action": Action(row.action)})
