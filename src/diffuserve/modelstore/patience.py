"""The patience of a download with its peers, before it takes from the bucket what others were to read."""

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
    """Counts waits in vain, in which nothing moved here or at the peers. Times are of any steady clock."""

    def __init__(self, wait_seconds: float, num_missing: int, now: float) -> None:
        """Wait for at least `wait_seconds`. So many pieces are neither here nor at a peer."""
        self.num_waits = 0
        self._wait_seconds, self._moved_at, self._longest_rest = wait_seconds, now, 0.0
        self._num_received, self._fewest_missing = 0, num_missing
        self._has_peers = self._has_moved = False

    def meet(self, now: float) -> None:
        """Note that peers are named. Waits before that were not in vain."""
        if not self._has_peers:
            self._has_peers, self._moved_at, self.num_waits = True, now, 0

    def look(self, num_received: int, num_missing: int, now: float) -> None:
        """Note how many bytes peers have sent, and how many pieces nobody has.

        What was waited for the first bytes tells of a slow start, and not that a share is lost: many workers
        that read others' shares for that would read the bucket twice. As long as peers send, they are also
        trusted to send what they have. Only fewer missing pieces than ever are a movement, or a peer that
        comes and goes would keep everybody waiting.
        """
        has_bytes = num_received - self._num_received >= _STEP_BYTES
        if has_bytes:
            self.num_waits = min(self.num_waits, PATIENT_WAITS - 1 if self._num_received else 0)
            self._num_received = num_received
        if has_bytes or num_missing < self._fewest_missing:
            self._fewest_missing = min(self._fewest_missing, num_missing)
            self.move(now)

    def move(self, now: float) -> None:
        """Note that a piece has come, from anywhere."""
        self._longest_rest, self._moved_at = max(self._longest_rest, now - self._moved_at), now
        self._has_moved = True

    def wait(self, now: float) -> None:
        """Count a wait in vain if nothing has moved for long enough."""
        if now - self._moved_at >= self._seconds():
            self.num_waits, self._moved_at = self.num_waits + 1, now

    def _seconds(self) -> float:
        longest = _UNADVISED_WAITS * self._wait_seconds
        if not self._has_peers:
            return longest
        if not self._has_moved:
            return _FIRST_WAITS * self._wait_seconds
        return min(max(self._wait_seconds, _REST_FACTOR * self._longest_rest), longest)
