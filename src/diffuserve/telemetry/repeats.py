"""Lines that every request would repeat, such as refused keys, are logged once a minute, with a count."""

import logging
import threading
from dataclasses import dataclass

from diffuserve.telemetry.log_fields import FIELDS, IS_REPEATED

_SECONDS = 60.0


def limit_repeats() -> None:
    """Hold repeated lines back in processes that configure no log, where the last resort prints them."""
    if logging.lastResort is not None and not logging.lastResort.filters:
        logging.lastResort.addFilter(RepeatFilter(logging.lastResort))


@dataclass
class _Held:
    """Lines that were held back since the last one was logged: their number, and the newest."""

    count: int = 0
    newest: logging.LogRecord | None = None


class RepeatFilter(logging.Filter):
    """Holds back the lines that `once_a_minute` marks, but for the first.

    After a minute in which some came the newest of them is logged, with their number as `times`.
    """

    def __init__(self, handler: logging.Handler, seconds: float = _SECONDS) -> None:
        super().__init__()
        self._handler = handler
        self._seconds = seconds
        self._lock = threading.Lock()
        self._held: dict[tuple[str, str], _Held] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log the line now."""
        if not getattr(record, IS_REPEATED, False):
            return True
        key = (record.name, str(record.msg))
        with self._lock:
            held = self._held.get(key)
            if held is not None:
                held.count, held.newest = held.count + 1, record
                return False
            self._held[key] = _Held()
        self._end_later(key)
        return True

    def end_period(self, key: tuple[str, str]) -> None:
        """Log what was held back in the last minute, and begin another one if there was anything."""
        with self._lock:
            held = self._held.pop(key)
            if held.newest is None:
                return
            self._held[key] = _Held()
        self._end_later(key)
        vars(held.newest)[FIELDS] = {**vars(held.newest).get(FIELDS, {}), "times": held.count}
        with self._handler.lock or threading.Lock():
            self._handler.emit(held.newest)

    def _end_later(self, key: tuple[str, str]) -> None:
        timer = threading.Timer(self._seconds, self.end_period, [key])
        timer.daemon = True  # nobody waits for it at the end of the process
        timer.start()
