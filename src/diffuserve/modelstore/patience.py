"""The timeouts of a download with peers, after which it reads other workers' shares from the bucket."""

_UNADVISED_WAITS = 12
"""Waits until peers are named, in place of one: a worker that the control plane does not answer gets no jobs
either, and of many that start on one machine some are named late."""
_FIRST_WAITS = 6
"""Waits until anything moves, in place of one: others may be reading their first pieces, all at once."""
_REST_FACTOR = 2.0
"""A wait lasts so many times the longest rest before, after which things moved again."""
_STEP_BYTES = 256 * 1024
"""Bytes from peers that are a movement: who sends fewer in a wait is as good as silent."""
PATIENT_WAITS = 2
"""Waits in vain after which pieces are read that peers say they have."""


class Patience:
    """Counts timeouts: waits without progress here or at the peers. Times are of any monotonic clock."""

    def __init__(self, wait_seconds: float, num_missing: int, now: float) -> None:
        """Wait at least `wait_seconds` each time; `num_missing` pieces are neither here nor at a peer."""
        self.num_waits = 0
        self._wait_seconds, self._moved_at, self._longest_rest = wait_seconds, now, 0.0
        self._num_received, self._fewest_missing = 0, num_missing
        self._has_peers = self._has_moved = False

    def meet(self, now: float) -> None:
        """Record that peers are known. Waits before that do not count as timeouts."""
        if not self._has_peers:
            self._has_peers, self._moved_at, self.num_waits = True, now, 0

    def look(self, num_received: int, num_missing: int, now: float) -> None:
        """Record how many bytes peers have sent, and how many pieces no peer has.

        A long wait for the first bytes means a slow start, not a lost share: if many workers read others'
        shares because of it, they would read the bucket twice. While peers send, they are trusted to send
        what they have. Only a new minimum of missing pieces counts as progress: otherwise a peer that comes
        and goes would keep all others waiting.
        """
        has_bytes = num_received - self._num_received >= _STEP_BYTES
        if has_bytes:
            self.num_waits = min(self.num_waits, PATIENT_WAITS - 1 if self._num_received else 0)
            self._num_received = num_received
        if has_bytes or num_missing < self._fewest_missing:
            self._fewest_missing = min(self._fewest_missing, num_missing)
            self.move(now)

    def move(self, now: float) -> None:
        """Record that a piece has arrived from any source."""
        self._longest_rest, self._moved_at = max(self._longest_rest, now - self._moved_at), now
        self._has_moved = True

    def wait(self, now: float) -> None:
        """Count a timeout if there was no progress for long enough."""
        if now - self._moved_at >= self._seconds():
            self.num_waits, self._moved_at = self.num_waits + 1, now

    def _seconds(self) -> float:
        longest = _UNADVISED_WAITS * self._wait_seconds
        if not self._has_peers:
            return longest
        if not self._has_moved:
            return _FIRST_WAITS * self._wait_seconds
        return min(max(self._wait_seconds, _REST_FACTOR * self._longest_rest), longest)
