"""Errors of a control plane and of the services behind it."""

from diffuserve.domain.errors.base import DiffuserveError


class ServerUnavailable(DiffuserveError):
    """The control plane is unavailable, or its database is: down, held by another process, or on a full
    disk.

    `retry_after` is the time in seconds after which to try again.

    Remedy: retry; clients and workers do so automatically.
    """

    code = "server_unavailable"
    status = 503
    is_retryable = True

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class StorageAway(ServerUnavailable):
    """The artifact store is away, and has been for a while; only workers are told so, whose results wait.

    Remedy: wait; workers do so by themselves. The server's log, `/readyz` and the alerts tell the operator.
    """

    code = "storage_away"


class StorageRefused(StorageAway):
    """The artifact store has no such bucket, or its credentials or permissions do not suffice.

    `is_missing`: there is no such bucket.

    Remedy: the operator acts, since no retry helps: the server's log has the trial at its start. The results
    of workers wait for it.
    """

    code = "storage_refused"
    is_retryable = False

    def __init__(self, message: str, *, is_missing: bool = False) -> None:
        super().__init__(message)
        self.is_missing = is_missing


class ModerationUnavailable(ServerUnavailable):
    """The prompt classifier is unreachable, and no prompt passes without a verdict.

    Remedy: retry later; operators choose with DIFFUSERVE_PROMPT_FILTER_DOWN.
    """

    code = "moderation_unavailable"


class ServerRefused(DiffuserveError):
    """A response of the control plane is an error that no other class stands for.

    Remedy: read the message.
    """

    code = "server_refused"
