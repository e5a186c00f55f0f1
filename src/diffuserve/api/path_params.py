"""Path parameters. A malformed id cannot exist, so it is a 404 without a read of the database."""

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


def checked_job_id(value: str) -> str:
    """Return the id. Raise `JobNotFound` if it is malformed."""
    if not _ID.fullmatch(value):
        raise JobNotFound(f"no job {value!r}")
    return value


def checked_worker_id(value: str) -> str:
    """Return the id. Raise `WorkerNotFound` if it is malformed."""
    if not _ID.fullmatch(value):
        raise WorkerNotFound(f"no worker {value!r}")
    return value


def checked_batch_id(value: str) -> str:
    """Return the id. Raise `BatchNotFound` if it is malformed."""
    if not _ID.fullmatch(value):
        raise BatchNotFound(f"no batch {value!r}")
    return value


def checked_endpoint_id(value: str) -> str:
    """Return the id. Raise `EndpointNotFound` if it is malformed."""
    if not _ID.fullmatch(value):
        raise EndpointNotFound(f"no webhook {value!r}")
    return value


def checked_delivery_id(value: str) -> str:
    """Return the id. Raise `DeliveryNotFound` if it is malformed."""
    if not _ID.fullmatch(value):
        raise DeliveryNotFound(f"no delivery {value!r}")
    return value


def checked_file_name(value: str) -> str:
    """Return the name. Raise `ArtifactNotFound` if no file can have it."""
    if not FILE_NAME.fullmatch(value):
        raise ArtifactNotFound(f"no file is named {value!r}; names are letters, digits, '.', '_' and '-'")
    return value


def checked_token(job_id: str, lease_token: int) -> int:
    """Return the token. Raise `LeaseLost` if it is out of range."""
    if not 0 < lease_token <= _MAX_TOKEN:
        raise LeaseLost(job_id)
    return lease_token


JobId = Annotated[str, AfterValidator(checked_job_id), Path(description="Id of the job.")]
WorkerId = Annotated[str, AfterValidator(checked_worker_id), Path(description="Id of the worker.")]
BatchId = Annotated[str, AfterValidator(checked_batch_id), Path(description="Id of the batch.")]
EndpointId = Annotated[str, AfterValidator(checked_endpoint_id), Path(description="Id of the webhook.")]
DeliveryId = Annotated[
    str, AfterValidator(checked_delivery_id), Path(description="Id of the delivery, its `webhook-id`.")
]
FileName = Annotated[str, AfterValidator(checked_file_name), Path(description="Name of the file.")]
