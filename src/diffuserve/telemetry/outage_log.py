"""The log of what goes away and comes back: at once, then now and again, and when it is over."""

import logging
import time
from collections.abc import Callable

from diffuserve.domain.errors import DiffuserveError, ServerUnavailable, StorageAway

log = logging.getLogger(__name__)

_SETTLED_SECONDS = 60.0  # an outage that begins sooner after another is the same one


def ever_more_rarely(num_logged: int) -> float:
    """Return the seconds until the next reminder: 30, then twice as many each time, up to an hour."""
    return min(30.0 * 2.0 ** min(num_logged - 1, 7), 3_600.0)


def each_minute(_num_logged: int) -> float:
    """Return the seconds until the next reminder: a minute."""
    return 60.0


class OutageLog:
    """Logs when a server, or what else is needed, goes away, that it still is, and when it is back.

    Where only some requests fail, outages begin and end every few seconds: then they share the reminders of
    one.
    """

    def __init__(
        self,
        subject: str,
        clock: Callable[[], float] = time.monotonic,
        reminders: Callable[[int], float] = ever_more_rarely,
        *,
        meanwhile: str = "trying again until it is back",
        level: int = logging.WARNING,
    ) -> None:
        """`meanwhile` says what an outage means; its end is logged one level below its beginning."""
        self._subject = subject
        self._clock = clock
        self._reminders = reminders
        self._meanwhile, self._level = meanwhile, level
        self._since: float | None = None
        self._ended_at = -_SETTLED_SECONDS
        self._is_announced = False
        self._num_logged = 0
        self._next_at = 0.0

    def note(self, error: DiffuserveError | None) -> None:
        """Note how a request to the server ended: with a response, or without one that counts."""
        if isinstance(error, ServerUnavailable) and not isinstance(error, StorageAway):
            self.failed(str(error))
        else:
            self.succeeded()

    @property
    def is_on(self) -> bool:
        """True while it is away."""
        return self._since is not None

    @property
    def seconds(self) -> float:
        """Seconds since it went away, 0 while it is there."""
        return 0.0 if self._since is None else self._clock() - self._since

    def failed(self, reason: str) -> None:
        """Note that it was of no use, and why."""
        now = self._clock()
        if self._since is None:
            self._since = now
            if now - self._ended_at >= _SETTLED_SECONDS:
                self._num_logged, self._next_at = 0, now
        if now >= self._next_at:
            self._announce(reason, now, self._since)

    def succeeded(self) -> None:
        """Note that it was of use."""
        if self._since is None:
            return
        now = self._clock()
        if self._is_announced:
            log.log(self._level - 10, "%s is back after %s", self._subject, _spelled(now - self._since))
        self._since, self._is_announced, self._ended_at = None, False, now

    def _announce(self, reason: str, now: float, since: float) -> None:
        if now == since:
            log.log(self._level, "%s; %s", reason, self._meanwhile)
        else:
            log.log(self._level, "%s; still so after %s", reason, _spelled(now - since))
        self._is_announced = True
        self._num_logged += 1
        self._next_at = now + self._reminders(self._num_logged)


def _spelled(seconds: float) -> str:
    """Spell a duration for people: `43 s`, `12 min`, `5.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"
