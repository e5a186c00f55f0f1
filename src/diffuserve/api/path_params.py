"""The shapes of names in paths; what has another shape cannot exist, and never reaches the database."""

import re
from typing import Annotated

from fastapi import Path
from pydantic import AfterValidator

from diffuserve.domain.errors import (
    ArtifactNotFound,
    BatchNotFound,
    DeliveryNotFound,
    EndpointNotFound,
    JobNotFound,
    LeaseLost,
    WorkerNotFound,
)

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_MAX_TOKEN = 2**31 - 1
MAX_SEQ = 2**31 - 1


def known_job_id(value: str) -> str:
    if not _ID.fullmatch(value):
        raise JobNotFound(f"no job {value!r}")
    return value


def known_worker_id(value: str) -> str:
    if not _ID.fullmatch(value):
        raise WorkerNotFound(f"no worker {value!r}")
    return value


def known_batch_id(value: str) -> str:
    if not _ID.fullmatch(value):
        raise BatchNotFound(f"no batch {value!r}")
    return value


def known_endpoint_id(value: str) -> str:
    if not _ID.fullmatch(value):
        raise EndpointNotFound(f"no webhook {value!r}")
    return value


def known_delivery_id(value: str) -> str:
    if not _ID.fullmatch(value):
        raise DeliveryNotFound(f"no delivery {value!r}")
    return value


def known_file_name(value: str) -> str:
    if not FILE_NAME.fullmatch(value):
        raise ArtifactNotFound(f"no file is named {value!r}; names are letters, digits, '.', '_' and '-'")
    return value


def known_token(job_id: str, lease_token: int) -> int:
    """Raises `LeaseLost` for what was never a token."""
    if not 0 < lease_token <= _MAX_TOKEN:
        raise LeaseLost(job_id)
    return lease_token


JobId = Annotated[str, AfterValidator(known_job_id), Path(description="A job's id.")]
WorkerId = Annotated[str, AfterValidator(known_worker_id), Path(description="A worker's id.")]
BatchId = Annotated[str, AfterValidator(known_batch_id), Path(description="A batch's id.")]
EndpointId = Annotated[str, AfterValidator(known_endpoint_id), Path(description="A webhook's id.")]
DeliveryId = Annotated[str, AfterValidator(known_delivery_id), Path(description="The `webhook-id`.")]
FileName = Annotated[str, AfterValidator(known_file_name), Path(description="Unique within its job.")]
