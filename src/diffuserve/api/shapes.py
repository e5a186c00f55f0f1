"""The shapes of names in paths; what has another shape cannot exist, and never reaches the database."""

import re
from typing import Annotated

from fastapi import Path
from pydantic import AfterValidator

from diffuserve.domain.errors import ArtifactNotFound, JobNotFound, WorkerNotFound

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
MAX_TOKEN = 2**62


def _job_id(value: str) -> str:
    if not _ID.fullmatch(value):
        raise JobNotFound(f"no job {value!r}")
    return value


def _worker_id(value: str) -> str:
    if not _ID.fullmatch(value):
        raise WorkerNotFound(f"no worker {value!r}")
    return value


def _file_name(value: str) -> str:
    if not _FILE_NAME.fullmatch(value):
        raise ArtifactNotFound(f"no file may be named {value!r}; use letters, digits, '.', '_' and '-'")
    return value


JobId = Annotated[str, AfterValidator(_job_id), Path(description="A job's id.")]
WorkerId = Annotated[str, AfterValidator(_worker_id), Path(description="A worker's id.")]
FileName = Annotated[str, AfterValidator(_file_name), Path(description="Unique within its job.")]
