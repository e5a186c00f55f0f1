"""Failures of requests while they run, and of the work that is kept of them."""

from diffuserve.domain.errors.base import DiffuserveError


class RequestFailed(DiffuserveError):
    """A request failed while it ran; its neighbors did not.

    Remedy: `request_id` identifies it, `__cause__` is the original exception.
    """

    code = "request_failed"

    def __init__(self, request_id: str, reason: str) -> None:
        super().__init__(f"request {request_id}: {reason}")
        self.request_id = request_id


class RequestAborted(RequestFailed):
    """The request was aborted.

    Remedy: none needed.
    """

    code = "aborted"


class NumericalFailure(RequestFailed):
    """The latents or the pixels were not finite.

    Remedy: another dtype: float16 overflows where bfloat16 and float32 do not.
    """

    code = "numerical_failure"


class OutputBlocked(RequestFailed):
    """The image filter blocks an image: the job fails, and no file of it is kept.

    Remedy: use another seed or prompt; `category` names what was found.
    """

    code = "output_blocked"

    def __init__(self, request_id: str, reason: str, category: str = "") -> None:
        super().__init__(request_id, reason)
        self.category = category


class OutputNotWritten(RequestFailed):
    """A worker cannot write the files of a request: its disk is full, or an encoder fails.

    Remedy: free space in the worker's folder for temporary files; the attempt is retried.
    """

    code = "output_not_written"


class OutOfMemory(RequestFailed):
    """The request is too large even with the device to itself.

    Remedy: fewer or smaller images; a job is not retried after it.
    """

    code = "out_of_memory"


class JobNotDone(DiffuserveError):
    """A job that was waited for was canceled, has expired, or failed with an error of no other class.

    Remedy: the message says which; `job_id` identifies it.
    """

    code = "job_not_done"
    facts = ("job_id",)

    def __init__(self, job_id: str, reason: str) -> None:
        super().__init__(f"job {job_id}: {reason}")
        self.job_id = job_id


class DownloadFailed(DiffuserveError):
    """An image that a job reads did not reach its worker: the store refused it three times, or was away
    for ten minutes.

    Remedy: none needed: the job is queued for another attempt.
    """

    code = "download_failed"


class UploadFailed(DiffuserveError):
    """A worker could not upload a file: the bucket refused it three times, or was away for ten minutes.

    Remedy: none needed: the job is queued for another attempt.
    """

    code = "upload_failed"


class LatentsUnusable(DiffuserveError):
    """The finished latents of a job, which another worker left, are gone, damaged or of other weights.

    Remedy: the job is denoised once more, and fails if it happens again; give all workers of a model the
    same weights.
    """

    code = "latents_unusable"


class CheckpointUnusable(DiffuserveError):
    """A checkpoint is damaged, too large, of another version, or of other weights, parameters or dtype
    than the engine's.

    Remedy: workers start the job anew; give all workers of a model the same weights and dtype.
    """

    code = "checkpoint_unusable"


class NoCheckpoint(DiffuserveError):
    """A request has nothing to keep: it has done no step yet, has ended, or its latents are not finite.

    Remedy: ask after its first step.
    """

    code = "no_checkpoint"
