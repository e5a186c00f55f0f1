"""The errors that callers may want to handle.

DiffuserveError
├── InvalidParams            also a ValueError; names the field, the value and the remedy
│   ├── ModelNotCapable      the model cannot honour a parameter that others can
│   └── ImageTooLarge        more pixels than the model generates
├── ModelNotFound            no such bundled model, folder or hub id
│   └── HubUnavailable       a model is not on this machine, and the hub cannot be reached
├── ModelCacheFull           no room for a model in the worker's cache, or on its disk
├── InvalidModel             a model folder that is incomplete, truncated or of another kind
├── DeviceUnavailable        the requested device is not on this machine
├── EngineClosed             the engine was closed before the request finished
├── NotFound                 no such resource, or it is another tenant's
│   ├── JobNotFound
│   ├── WorkerNotFound       register again
│   ├── KeyNotFound
│   ├── ArtifactNotFound
│   ├── BatchNotFound
│   ├── FileNotKnown         no such uploaded image, or it has expired
│   ├── EndpointNotFound
│   └── DeliveryNotFound
├── RangeNotSatisfiable      a file ends before the range that was asked for
├── Conflict                 the resource is not in a state that allows this
│   ├── ModelConflict        live workers offer this model with another spec
│   ├── LeaseLost            another worker may hold the job; drop all local work
│   ├── NotFinished          the job has no result yet
│   ├── UploadMissing        a job was completed without its files; upload them again
│   ├── FileInUse            a job that has not ended needs this image
│   └── IdempotencyMismatch  the key was used with another body
├── Refused                  allowed to other callers, or later
│   ├── Unauthorized         no API key, or an unknown one
│   ├── Forbidden            the API key's role does not allow this
│   ├── BandNotAllowed       the plan does not include this band
│   ├── QueueFull            the tenant has as many queued jobs as its plan allows
│   ├── RateLimited          the tenant sends more requests per second than its plan allows
│   ├── TooManyWaits         the tenant has as many streams and waits open as its plan allows
│   ├── BacklogFull          more work is queued than the service accepts
│   ├── DeadlineUnreachable  the job would be late even at best
│   ├── PromptBlocked        the safety policy blocks this prompt
│   ├── ImageBlocked         the image filter blocks an image that a request brings
│   ├── FilesFull            the tenant has as many uploaded images as its plan allows
│   ├── UploadTooSlow        the body of a batch does not arrive in time
│   └── TooLarge             a request body or a file over the limit
├── ServerUnavailable        the control plane is unreachable, or unavailable now
│   ├── StorageRefused       no such bucket, or its credentials do not allow it
│   └── ModerationUnavailable  the prompt classifier is unreachable, and no prompt may skip it
├── ServerRefused            an error response that no other class stands for
├── UploadFailed             a bucket did not accept a finished file within the retries
├── DownloadFailed           an input image did not arrive within the retries
├── LatentsUnusable          the finished latents of a job are gone or damaged; it is denoised once more
├── NoCheckpoint             the request has done no step yet, or has ended
├── CheckpointUnusable       a checkpoint of another request or engine, or a damaged one
└── RequestFailed            one request failed; its neighbours did not
    ├── RequestAborted
    ├── NumericalFailure     NaN or infinity in the latents
    ├── OutputBlocked        the image filter blocks an image
    ├── OutputNotWritten     the files cannot be written: a full disk, or an encoder that fails
    └── OutOfMemory          too large even when run alone
"""

from typing import ClassVar

from diffuserve.domain.shortened import shortened


class DiffuserveError(Exception):
    """The root of this project's errors; `code` is stable and meant for machines."""

    code: ClassVar[str] = "error"


class InvalidParams(DiffuserveError, ValueError):
    """A parameter is wrong; nothing was started."""

    code = "invalid_params"

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(f"{field}={shortened(value)}: {remedy}")
        self.field = field
        self.value = value
        self.remedy = remedy


class ModelNotCapable(InvalidParams):
    """The model cannot honour this parameter; it is refused rather than dropped."""

    code = "model_not_capable"


class ImageTooLarge(InvalidParams):
    """The image would have more pixels than the model generates."""

    code = "picture_too_large"


class ModelNotFound(DiffuserveError, ValueError):
    code = "model_not_found"


class HubUnavailable(ModelNotFound):
    """A model could not be downloaded; trying again may help, and continues what was begun."""

    code = "hub_unavailable"


class ModelCacheFull(DiffuserveError):
    """A model has no room on this machine, since others are in use or the disk is full."""

    code = "model_cache_full"


class InvalidModel(DiffuserveError, ValueError):
    code = "invalid_model"


class DeviceUnavailable(DiffuserveError, ValueError):
    code = "device_unavailable"


class EngineClosed(DiffuserveError):
    code = "engine_closed"


class NotFound(DiffuserveError):
    """The resource does not exist, or belongs to another tenant, which looks the same to the caller."""

    code = "not_found"


class JobNotFound(NotFound):
    code = "job_not_found"


class WorkerNotFound(NotFound):
    code = "worker_not_found"


class KeyNotFound(NotFound):
    code = "key_not_found"


class ArtifactNotFound(NotFound):
    code = "artifact_not_found"


class RangeNotSatisfiable(DiffuserveError):
    """The file has no byte in the range that was asked for; `size` is its own, in bytes."""

    code = "range_not_satisfiable"

    def __init__(self, asked: str, size: int) -> None:
        super().__init__(f"range {asked!r} begins behind the end of the file, which has {size:,} bytes")
        self.size = size


class BatchNotFound(NotFound):
    code = "batch_not_found"


class FileNotKnown(NotFound):
    """The uploaded image does not exist, or has expired; upload it again."""

    code = "file_not_found"


class EndpointNotFound(NotFound):
    code = "endpoint_not_found"


class DeliveryNotFound(NotFound):
    code = "delivery_not_found"


class Conflict(DiffuserveError):
    """The resource is not in a state that allows this."""

    code = "conflict"


class ModelConflict(Conflict):
    """Live workers offer the model with another spec; drain them first, or name the model differently."""

    code = "model_conflict"


class LeaseLost(Conflict):
    """The lease expired and another worker may hold the job; drop all local work."""

    code = "lease_lost"

    def __init__(self, job_id: str) -> None:
        super().__init__(f"the lease on job {job_id} is lost; drop all work on it")
        self.job_id = job_id


class NotFinished(Conflict):
    """The job has no result yet."""

    code = "not_finished"


class UploadMissing(Conflict):
    """A job was completed with a file that is not stored as declared; upload it again."""

    code = "upload_missing"


class FileInUse(Conflict):
    """A job that has not ended needs this image; cancel it first, or wait."""

    code = "file_in_use"


class IdempotencyMismatch(Conflict):
    code = "idempotency_mismatch"


class Refused(DiffuserveError):
    """The request is allowed to other callers, or later: after `retry_after` seconds, where known."""

    code = "refused"

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unauthorized(Refused):
    code = "unauthorized"


class Forbidden(Refused):
    code = "forbidden"


class BandNotAllowed(Refused):
    code = "band_not_allowed"


class QueueFull(Refused):
    code = "queue_full"


class RateLimited(Refused):
    code = "rate_limited"


class TooManyWaits(Refused):
    code = "too_many_waits"


class BacklogFull(Refused):
    code = "backlog_full"


class DeadlineUnreachable(Refused):
    """The job cannot be done by its deadline; `eta_s_low` and `eta_s_high` are seconds until it could be.

    They are `None` while no worker is ready for its model.
    """

    code = "deadline_unreachable"

    def __init__(
        self, finish_in: float, least: float, eta_s_low: float | None, eta_s_high: float | None
    ) -> None:
        super().__init__(
            f"the deadline is in {finish_in:.1f} s, and the job would take {least:.1f} s at best; "
            "give it more time, or set best_effort to have it done as soon as possible"
        )
        self.eta_s_low = eta_s_low
        self.eta_s_high = eta_s_high


class PromptBlocked(Refused):
    """The safety policy blocks this prompt; `category` names the rule."""

    code = "prompt_blocked"

    def __init__(self, category: str) -> None:
        super().__init__(f"the prompt is blocked by the policy of this server (category {category!r})")
        self.category = category


class ImageBlocked(Refused):
    """The image filter blocks an image that a request brings; `category` names what it was found to show."""

    code = "image_blocked"

    def __init__(self, field: str, category: str) -> None:
        super().__init__(
            f"{field}: the image is blocked by the policy of this server (category {category!r})"
        )
        self.field = field
        self.category = category


class FilesFull(Refused):
    """The tenant has as many uploaded images, or bytes of them, as its plan allows; delete some."""

    code = "files_full"


class UploadTooSlow(Refused):
    code = "upload_too_slow"


class TooLarge(Refused):
    code = "too_large"


class ServerUnavailable(DiffuserveError):
    """The control plane is unreachable or unavailable; try again after `retry_after` seconds."""

    code = "server_unavailable"

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class StorageRefused(ServerUnavailable):
    """The artifact store refuses access, which no retry changes: its operator has to act.

    `is_missing`: there is no such bucket; otherwise its credentials or their permissions do not suffice.
    """

    code = "storage_refused"

    def __init__(self, message: str, *, is_missing: bool = False) -> None:
        super().__init__(message)
        self.is_missing = is_missing


class ModerationUnavailable(ServerUnavailable):
    """The prompt classifier is unreachable, and the settings let no prompt skip it."""

    code = "moderation_unavailable"


class ServerRefused(DiffuserveError):
    """An error response of the control plane that no other class stands for."""

    code = "server_refused"


class UploadFailed(DiffuserveError):
    """A bucket did not accept a finished file within the worker's retries."""

    code = "upload_failed"


class DownloadFailed(DiffuserveError):
    """An image that a job reads did not reach its worker within the retries."""

    code = "download_failed"


class LatentsUnusable(DiffuserveError):
    """The finished latents of a job are gone, damaged or of other weights; it is denoised once more."""

    code = "latents_unusable"


class RequestFailed(DiffuserveError):
    """A request failed while it ran; its neighbours did not."""

    code = "request_failed"

    def __init__(self, request_id: str, reason: str) -> None:
        super().__init__(f"request {request_id}: {reason}")
        self.request_id = request_id


class RequestAborted(RequestFailed):
    code = "aborted"


class NumericalFailure(RequestFailed):
    code = "numerical_failure"


class OutputBlocked(RequestFailed):
    """The image filter blocks an image; `category` names what it was found to show."""

    code = "output_blocked"

    def __init__(self, request_id: str, reason: str, category: str = "") -> None:
        super().__init__(request_id, reason)
        self.category = category


class OutputNotWritten(RequestFailed):
    """The files of a finished request cannot be written; another worker may have room for them."""

    code = "output_not_written"


class OutOfMemory(RequestFailed):
    code = "out_of_memory"
