"""Errors of resources: those that are not there, and those in another state."""

from diffuserve.domain.errors.base import DiffuserveError


class NotFound(DiffuserveError):
    """The resource does not exist, or belongs to another tenant, which looks the same to the caller.

    Remedy: check the id and the API key.
    """

    code = "not_found"
    status = 404


class JobNotFound(NotFound):
    """The job does not exist, or was deleted, or its retention time is over."""

    code = "job_not_found"


class WorkerNotFound(NotFound):
    """The control plane does not know this worker, or no longer.

    Remedy: register again; workers do so automatically.
    """

    code = "worker_not_found"


class KeyNotFound(NotFound):
    """The API key does not exist.

    Remedy: `diffuserve keys list` shows those that do.
    """

    code = "key_not_found"


class ArtifactNotFound(NotFound):
    """The file does not exist, or its URL has expired.

    Remedy: get the job again: the response has fresh URLs.
    """

    code = "artifact_not_found"


class BatchNotFound(NotFound):
    """The batch does not exist, or its retention time is over."""

    code = "batch_not_found"


class FileNotKnown(NotFound):
    """The uploaded image does not exist, or was deleted or has expired.

    Remedy: upload it again.
    """

    code = "file_not_found"


class EndpointNotFound(NotFound):
    """The webhook does not exist, or got no message for a week.

    Remedy: `GET /v1/webhooks` lists those that do.
    """

    code = "endpoint_not_found"


class DeliveryNotFound(NotFound):
    """The delivery is not one of this webhook, or is more than a week old."""

    code = "delivery_not_found"


class RangeNotSatisfiable(DiffuserveError):
    """The file has no byte in the range that was asked for.

    `size` is its own, in bytes.

    Remedy: `Content-Range` says how long the file is.
    """

    code = "range_not_satisfiable"
    status = 416

    def __init__(self, asked: str, size: int) -> None:
        super().__init__(f"range {asked!r} begins behind the end of the file, which has {size:,} bytes")
        self.size = size


class Conflict(DiffuserveError):
    """The resource is not in a state that allows this."""

    code = "conflict"
    status = 409


class ModelConflict(Conflict):
    """Live workers offer the model with another spec.

    Remedy: drain them first, or give the model another name; `diffuserve worker` tries again every 5 s.
    """

    code = "model_conflict"


class LeaseLost(Conflict):
    """A worker used a stale token, or another worker's API key; another one may hold the job.

    Remedy: drop all work on it; workers do so automatically.
    """

    code = "lease_lost"
    facts = ("job_id",)

    def __init__(self, job_id: str) -> None:
        super().__init__(f"the lease on job {job_id} is lost; drop all work on it")
        self.job_id = job_id


class NotFinished(Conflict):
    """A result was requested before the job had succeeded.

    Remedy: wait for the job, or read its error.
    """

    code = "not_finished"


class UploadMissing(Conflict):
    """A job was completed with a file that is not stored as declared.

    Remedy: upload its files again; workers do so automatically.
    """

    code = "upload_missing"


class FileInUse(Conflict):
    """A job that has not ended needs the image that was to be deleted.

    Remedy: cancel the job, or wait for it.
    """

    code = "file_in_use"


class IdempotencyMismatch(Conflict):
    """The `Idempotency-Key` was used with another body.

    Remedy: use a new key for a new job.
    """

    code = "idempotency_mismatch"
    status = 422
