"""The log of a server's outages: at once, then ever more rarely, and when they are over."""

import logging
import time
from collections.abc import Callable

from diffuserve.backoff import Backoff
from diffuserve.domain.errors import DiffuserveError, ServerUnavailable, StorageAway

log = logging.getLogger(__name__)

_REMINDERS = Backoff(first_seconds=30.0, longest_seconds=3_600.0)
_SETTLED_SECONDS = 60.0  # an outage that begins sooner after another is the same one


class OutageLog:
    """Logs when a server goes away, that it still is, and when it is back.

    Where only some requests fail, outages begin and end every few seconds: then they share the reminders of
    one.
    """

    def __init__(
        self, server: str, clock: Callable[[], float] = time.monotonic, reminders: Backoff = _REMINDERS
    ) -> None:
        self._server = server
        self._clock = clock
        self._reminders = reminders
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
        """True while the server is away."""
        return self._since is not None

    def failed(self, reason: str) -> None:
        """Note that the server was of no use, and why."""
        now = self._clock()
        if self._since is None:
            self._since = now
            if now - self._ended_at >= _SETTLED_SECONDS:
                self._num_logged, self._next_at = 0, now
        if now >= self._next_at:
            self._announce(reason, now, self._since)

    def succeeded(self) -> None:
        """Note that the server was of use."""
        if self._since is None:
            return
        now = self._clock()
        if self._is_announced:
            log.info("%s is back after %s", self._server, _spelled(now - self._since))
        self._since, self._is_announced, self._ended_at = None, False, now

    def _announce(self, reason: str, now: float, since: float) -> None:
        if now == since:
            log.warning("%s; trying again until it is back", reason)
        else:
            log.warning("%s; still so after %s", reason, _spelled(now - since))
        self._is_announced = True
        self._num_logged += 1
        self._next_at = now + self._reminders.pause_seconds(self._num_logged)


def _spelled(seconds: float) -> str:
    """Spell a duration for people: `43 s`, `12 min`, `5.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"
