"""Reports of an engine process about its loading."""

import threading
import time

from diffuserve.domain.models.parts import ALL_PARTS, Parts
from diffuserve.engine_process.agent_link import AgentLink
from diffuserve.models.registry import num_weight_bytes
from diffuserve.protocol.messages import EngineLoading

_REPORT_SECONDS = 1.0


class LoadReporter:
    """Tells the agent which phase begins and, once a second, how much of the weights is read."""

    def __init__(self, link: AgentLink) -> None:
        self._link = link
        self._lock = threading.Lock()
        self._reported_at = 0.0
        self._progress = EngineLoading(phase="starting")

    def begin(self, phase: str, bytes_total: int = 0) -> None:
        """Report that a phase begins."""
        self._send(EngineLoading(phase=phase, bytes_total=bytes_total))

    def begin_weights(self, model: str, parts: Parts = ALL_PARTS, num_sharing: int = 1) -> None:
        """Report that the parts' weights are read next; `add` counts their bytes.

        Of ranks that share the weights each reads about one of `num_sharing` parts.
        """
        self.begin("weights", num_weight_bytes(model, parts) // num_sharing)

    def add(self, num_bytes: int) -> None:
        """Count bytes of the phase; several threads may do so."""
        with self._lock:
            before = self._progress
            self._progress = EngineLoading(
                phase=before.phase, bytes_read=before.bytes_read + num_bytes, bytes_total=before.bytes_total
            )
            if time.monotonic() - self._reported_at >= _REPORT_SECONDS:
                self._send(self._progress)

    def _send(self, progress: EngineLoading) -> None:
        self._progress, self._reported_at = progress, time.monotonic()
        self._link.send(progress)
