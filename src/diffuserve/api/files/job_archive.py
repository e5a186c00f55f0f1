"""The zip file of several jobs' results, sent while it is packed: memory holds one chunk of a file.

The standard library's `zipfile` can write to a stream that cannot seek. Files are stored uncompressed, since
images and clips are compressed already, and each has its size and checksum after its content.
"""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any, Self
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import orjson

from diffuserve.api.files.job_files import content_of
from diffuserve.domain.errors import ArtifactNotFound, JobNotFound, ServerUnavailable
from diffuserve.domain.jobs.job import Artifact, Job
from diffuserve.domain.resources.job import outputs_among
from diffuserve.domain.text.timestamps import to_rfc3339
from diffuserve.media.file_names import slug
from diffuserve.storage.base import ArtifactStore

MAX_JOBS = 100
"""Jobs in one archive."""

_MANIFEST = "manifest.json"
_SLUG_CHARACTERS = 40
_SUFFIX = re.compile(r"\.[a-z0-9]{1,8}")


@dataclass
class _Sink:
    """Bytes that were written but not sent yet; it cannot seek."""

    pieces: list[bytes] = field(default_factory=list)

    def write(self, content: bytes) -> int:
        self.pieces.append(bytes(content))
        return len(content)

    def flush(self) -> None:
        """Do nothing: written bytes are sent at once."""

    def take(self) -> bytes:
        """Return the bytes written since the last call."""
        content = b"".join(self.pieces)
        self.pieces.clear()
        return content


@dataclass
class JobArchive:
    """Files of finished jobs, and a manifest that names each job's input and what is missing."""

    store: ArtifactStore
    files: list[dict[str, Any]] = field(default_factory=list)
    missing: list[dict[str, Any]] = field(default_factory=list)
    _sink: _Sink = field(default_factory=_Sink)

    @classmethod
    def of(cls, store: ArtifactStore, unknown: Sequence[str]) -> Self:
        """Return an archive whose manifest says that some of the jobs that were asked for are not there."""
        reasons = [{"job_id": job_id, "reason": JobNotFound.code} for job_id in unknown]
        return cls(store, missing=reasons)

    async def stream(self, jobs: Sequence[Job]) -> AsyncIterator[bytes]:
        """Yield the archive in chunks; if the store fails within a file, the response is aborted."""
        with ZipFile(self._sink, "w", ZIP_STORED) as archive:  # type: ignore[call-overload]  # a sink suffices
            for job in jobs:
                async for piece in self._packed(archive, job):
                    yield piece
            archive.writestr(_entry(_MANIFEST, datetime.now(UTC)), self._manifest(jobs))
        yield self._sink.take()

    async def _packed(self, archive: ZipFile, job: Job) -> AsyncIterator[bytes]:
        outputs = outputs_among(job.result.artifacts) if job.result else []
        if not outputs:
            self.missing.append({"job_id": job.id, "reason": f"the job is {job.status} and has no files"})
        for artifact in outputs:
            name = name_of(job, artifact, has_several=len(outputs) > 1)
            async for piece in self._packed_file(archive, job, artifact, name):
                yield piece

    async def _packed_file(
        self, archive: ZipFile, job: Job, artifact: Artifact, name: str
    ) -> AsyncIterator[bytes]:
        facts = {"job_id": job.id, "index": artifact.index, "sha256": artifact.sha256}
        key = content_of(job.id, job.lease_token, artifact.name, artifact.sha256).key
        async with aclosing(_pieces(self.store, key)) as pieces:
            try:
                piece = await anext(pieces, b"")
            except (ArtifactNotFound, ServerUnavailable) as error:
                self.missing.append(facts | {"reason": str(error)})
                return
            moment = datetime.fromtimestamp(job.finished_at or job.created_at, UTC)
            with archive.open(_entry(name, moment, artifact.size_bytes), "w") as entry:
                while piece:
                    entry.write(piece)
                    yield self._sink.take()
                    piece = await anext(pieces, b"")
        self.files.append({"name": name, **facts, "seed": artifact.seed})

    def _manifest(self, jobs: Sequence[Job]) -> bytes:
        facts = [
            {
                "id": job.id,
                "model": job.model,
                "status": job.status,
                "created_at": to_rfc3339(job.created_at),
                "input": job.input,
                "files": [file["name"] for file in self.files if file["job_id"] == job.id],
            }
            for job in jobs
        ]
        content = {"jobs": facts, "files": self.files, "missing": self.missing}
        return orjson.dumps(content, option=orjson.OPT_INDENT_2)


def name_of(job: Job, artifact: Artifact, has_several: bool) -> str:
    """Return `PROMPT-SLUG_SEED_JOB.SUFFIX`, made of letters, digits, `-` and `_` alone.

    The id keeps the names of different jobs apart, and the number of the file those of one job.
    """
    suffix = PurePosixPath(artifact.name).suffix.lower()
    seed = artifact.seed if artifact.seed is not None else job.input.get("seed")
    parts = [
        slug(str(job.input.get("prompt", "")), _SLUG_CHARACTERS),
        *([str(int(seed))] if isinstance(seed, int) else []),
        job.id,
        *([str(artifact.index + 1)] if has_several else []),
    ]
    return "_".join(parts) + (suffix if _SUFFIX.fullmatch(suffix) else "")


def _entry(name: str, moment: datetime, size_bytes: int = 0) -> ZipInfo:
    info = ZipInfo(name, max(moment.timetuple()[:6], (1980, 1, 1, 0, 0, 0)))
    info.file_size = size_bytes  # whether 64 bits are needed is decided before the content is there
    info.external_attr = 0o644 << 16
    return info


async def _pieces(store: ArtifactStore, key: str) -> Any:
    async for piece in store.read(key):
        if piece:
            yield piece
