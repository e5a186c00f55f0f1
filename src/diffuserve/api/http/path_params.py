"""Path parameters. A malformed id cannot exist, so it is a 404 without a read of the database."""

from collections.abc import Callable, Mapping
from typing import Annotated

from fastapi import Path
from pydantic import AfterValidator

from diffuserve.domain.errors import (
    ArtifactNotFound,
    BatchNotFound,
    DeliveryNotFound,
    EndpointNotFound,
    FileNotKnown,
    JobNotFound,
    LeaseLost,
    NotFound,
    WorkerNotFound,
)
from diffuserve.domain.text.path_parts import FILE_NAME, ID

_MAX_TOKEN = 2**31 - 1
MAX_SEQ = 2**31 - 1


def _id_check(error: type[NotFound], kind: str) -> Callable[[str], str]:
    """Build a function that returns a well-formed id and raises `error` for a malformed one."""

    def checked_id(value: str) -> str:
        if not ID.fullmatch(value):
            raise error(f"no {kind} {value!r}")
        return value

    return checked_id


checked_job_id = _id_check(JobNotFound, "job")
checked_worker_id = _id_check(WorkerNotFound, "worker")
checked_batch_id = _id_check(BatchNotFound, "batch")
checked_endpoint_id = _id_check(EndpointNotFound, "webhook")
checked_delivery_id = _id_check(DeliveryNotFound, "delivery")
checked_file_id = _id_check(FileNotKnown, "file")


def named_ids(path_params: Mapping[str, object]) -> dict[str, str]:
    """Return the well-formed ids of a job and a worker that a path has, for the log."""
    values = {name: str(path_params[name]) for name in ("job_id", "worker_id") if name in path_params}
    return {name: value for name, value in values.items() if ID.fullmatch(value)}


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
FileId = Annotated[str, AfterValidator(checked_file_id), Path(description="Id of the file.")]
FileName = Annotated[str, AfterValidator(checked_file_name), Path(description="Name of the file.")]
