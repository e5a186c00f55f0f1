"""Refusals of requests that other callers may make, or that may be made later."""

from diffuserve.domain.errors.base import DiffuserveError


class Refused(DiffuserveError):
    """The request is allowed to other callers, or later.

    `retry_after` is the time in seconds after which it may be, where known.
    """

    code = "refused"
    status = 403

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unauthorized(Refused):
    """The API key is missing or invalid.

    Remedy: send `Authorization: Bearer KEY`.
    """

    code = "unauthorized"
    status = 401


class Forbidden(Refused):
    """The key's role does not allow this, or an open server was called by a foreign name or from another
    site's page.

    Remedy: use a key of another role; name the host in DIFFUSERVE_ALLOWED_HOSTS, or create a key.
    """

    code = "forbidden"


class BandNotAllowed(Refused):
    """The plan does not include this priority.

    Remedy: use a lower priority or another plan.
    """

    code = "band_not_allowed"


class OptionNotAllowed(Refused):
    """The plan does not include this option of jobs.

    Remedy: leave it out, or use another plan.
    """

    code = "option_not_allowed"


class QueueFull(Refused):
    """The tenant has as many queued jobs, or device-seconds of them, as its plan allows.

    Remedy: wait for `Retry-After`.
    """

    code = "queue_full"
    status = 429
    is_retryable = True


class RateLimited(Refused):
    """The tenant exceeds its plan's request rate.

    Remedy: wait for `Retry-After`; the request is then accepted.
    """

    code = "rate_limited"
    status = 429
    is_retryable = True


class TooManyWaits(Refused):
    """The tenant has as many event streams, WebSockets and waits open as its plan allows.

    Remedy: end some of them, or follow jobs by webhooks.
    """

    code = "too_many_waits"
    status = 429
    is_retryable = True


class BacklogFull(Refused):
    """The queued work exceeds the service's limit.

    Remedy: wait for `Retry-After`.
    """

    code = "backlog_full"
    status = 503
    is_retryable = True


class DeadlineUnreachable(Refused):
    """The job would miss its deadline at the present load.

    `eta_s_low` and `eta_s_high` are seconds until it could be done; `None` while no worker is ready for
    its model.

    Remedy: allow more time, or set `best_effort`.
    """

    code = "deadline_unreachable"
    status = 503
    facts = ("eta_s_low", "eta_s_high")

    def __init__(
        self, finish_in: float, likely: float, eta_s_low: float | None, eta_s_high: float | None
    ) -> None:
        super().__init__(
            f"the deadline is in {finish_in:.1f} s, and the job would likely take {likely:.1f} s; "
            "give it more time, or set best_effort to have it done as soon as possible"
        )
        self.eta_s_low = eta_s_low
        self.eta_s_high = eta_s_high


class PromptBlocked(Refused):
    """The server's policy blocks the prompt; no job is stored and nothing is charged.

    Remedy: reword the prompt; `category` names the part of the policy.
    """

    code = "prompt_blocked"
    status = 422
    facts = ("category",)

    def __init__(self, category: str) -> None:
        super().__init__(f"the prompt is blocked by the policy of this server (category {category!r})")
        self.category = category


class ImageBlocked(Refused):
    """The server's image filter blocks an image that a request brings; nothing of it is stored.

    Remedy: use another image; `category` names what was found.
    """

    code = "image_blocked"
    status = 422
    facts = ("category",)

    def __init__(self, field: str, category: str) -> None:
        super().__init__(
            f"{field}: the image is blocked by the policy of this server (category {category!r})"
        )
        self.field = field
        self.category = category


class FilesFull(Refused):
    """The tenant has as many uploaded images, or bytes of them, as its plan allows.

    Remedy: delete some, or wait until they expire.
    """

    code = "files_full"
    status = 429


class AdaptersFull(Refused):
    """The tenant has as many adapters, or bytes of them, as its plan allows.

    Remedy: delete some with `DELETE /v1/adapters/{name}`.
    """

    code = "adapters_full"
    status = 429


class UploadTooSlow(Refused):
    """The body of a batch or an uploaded image arrives too slowly, or is not complete in time.

    Remedy: send it again over a better connection, or in smaller batches.
    """

    code = "upload_too_slow"
    status = 408
    is_retryable = True


class TooLarge(Refused):
    """A body or a file exceeds the limit, or a job or batch the plan's whole queue.

    Remedy: send less at a time.
    """

    code = "too_large"
    status = 413
