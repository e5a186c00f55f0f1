"""The device-seconds that an attempt is charged: pure functions of what its worker says and what can be.

What a job is charged in all are the device-seconds of the attempt that ends it, with those in the checkpoint
that this went on from. `JobRecord.kept_seconds` of these are charged already.
"""

from dataclasses import dataclass

from diffuserve.domain.jobs.job import Phase

SLACK_SECONDS = 1.0
"""Seconds by which a worker's measure may exceed the store's, at most as much as the job should take."""
_DECODED = (Phase.FILTER, Phase.UPLOAD)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """An attempt that ends: what it was to do, how far it was when its worker last told, and its time.

    `denoise_seconds` and `decode_seconds` are predicted, for what the attempt was to do of the job, of which
    `step` of `total` steps were done; `kept_seconds` of it are charged already. Its lease, which was charged
    `charged`, was held for `held_seconds`; the attempts whose work it may have gone on with, and what lay
    between, began `since_seconds` ago.
    """

    charged: float
    denoise_seconds: float
    decode_seconds: float
    kept_seconds: float
    held_seconds: float
    since_seconds: float
    phase: str | None = None
    step: int = 0
    total: int = 0

    @property
    def most_seconds(self) -> float:
        """Device-seconds that it can have taken: a device has no more of them than seconds pass."""
        return self.since_seconds + min(SLACK_SECONDS, self.charged)

    @property
    def done_seconds(self) -> float:
        """Predicted device-seconds of what was done when its worker last told."""
        if self.phase in _DECODED:
            return self.denoise_seconds + self.decode_seconds
        return self.denoise_seconds * min(self.step / self.total, 1.0) if self.total > 0 else 0.0


def seconds_of(attempt: Attempt, reported: float | None) -> float:
    """Return the device-seconds of an attempt, as far as they can be; without a report nothing new.

    Those of attempts whose work it went on with are among them.
    """
    return attempt.kept_seconds if reported is None else min(reported, attempt.most_seconds)


def seconds_of_abandoned(attempt: Attempt, reported: float | None) -> float:
    """Return the device-seconds of an attempt that ends by its tenant's own doing.

    They are at least those of what was done, by this attempt or in the checkpoint that it may not have come
    to read, whatever the worker says. If it says nothing, all that the lease can have taken counts, up to
    what was predicted.
    """
    if reported is None:
        reported = attempt.kept_seconds + min(attempt.charged, attempt.held_seconds)
    return min(max(reported, attempt.done_seconds, attempt.kept_seconds), attempt.most_seconds)
