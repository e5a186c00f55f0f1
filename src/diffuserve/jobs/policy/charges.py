"""The device-seconds that an attempt is charged: pure functions of its worker's report and its limits.

A job's total charge is the device-seconds of the attempt that ends it, including those in the checkpoint that
this attempt resumed. `JobRecord.kept_seconds` of them are charged already.
"""

from dataclasses import dataclass

from diffuserve.domain.jobs.job import Phase

SLACK_SECONDS = 1.0
"""Seconds by which a worker's measure may exceed the store's, at most as much as the job should take."""
_DECODED = (Phase.FILTER, Phase.UPLOAD)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """An attempt that ends: its task, its progress at the worker's last report, and its time.

    `denoise_seconds` and `decode_seconds` are the predictions for the attempt's part of the job;
    `kept_seconds` of it are charged already. At the last report `step` of `total` steps were done. Its lease,
    which was charged `charged`, was held for `held_seconds`. The first of the attempts whose work it may have
    resumed began `since_seconds` ago.
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
    def max_seconds(self) -> float:
        """The most device-seconds that it can have taken: a device provides one per second."""
        return self.since_seconds + min(SLACK_SECONDS, self.charged)

    @property
    def done_seconds(self) -> float:
        """Predicted device-seconds of the work done at the worker's last report."""
        if self.phase in _DECODED:
            return self.denoise_seconds + self.decode_seconds
        return self.denoise_seconds * min(self.step / self.total, 1.0) if self.total > 0 else 0.0


def seconds_of(attempt: Attempt, reported: float | None) -> float:
    """Return the reported device-seconds, limited to what is possible; without a report nothing new counts.

    They include those of earlier attempts whose work this one resumed.
    """
    return attempt.kept_seconds if reported is None else min(reported, attempt.max_seconds)


def seconds_of_abandoned(attempt: Attempt, reported: float | None) -> float:
    """Return the device-seconds of an attempt that its own tenant ended.

    Whatever the worker reports, they are at least those of the work done, by this attempt or in the
    checkpoint that it may not have read yet. Without a report the lease counts in full, up to the prediction.
    """
    if reported is None:
        reported = attempt.kept_seconds + min(attempt.charged, attempt.held_seconds)
    return min(max(reported, attempt.done_seconds, attempt.kept_seconds), attempt.max_seconds)
