"""Whether the engine still works, from what it said and when. Pure."""

from dataclasses import dataclass, replace

from diffuserve.worker.config import WorkerConfig
from diffuserve.worker.messages import Beat

_STEPS_OF_PATIENCE = 10.0


@dataclass(frozen=True)
class Pulse:
    """Signs of life; times by the agent's monotonic clock."""

    beat_at: float
    moved_at: float
    num_moves: int = 0
    longest_step_seconds: float = 0.0

    def beaten(self, beat: Beat, now: float) -> "Pulse":
        moved_at = now if beat.num_moves != self.num_moves else self.moved_at
        return Pulse(now, moved_at, beat.num_moves, beat.longest_step_seconds)

    def moved(self, now: float) -> "Pulse":
        """A job moved, or an idle engine got its first one."""
        return replace(self, moved_at=now)


def stall_reason(pulse: Pulse, is_occupied: bool, now: float, config: WorkerConfig) -> str | None:
    """Why the engine is taken for stuck; `None` while it is not."""
    silence = now - pulse.beat_at
    if silence > config.silence_seconds:
        return f"no sign of life for {silence:.0f} s"
    patience = max(config.stall_seconds, _STEPS_OF_PATIENCE * pulse.longest_step_seconds)
    still = now - pulse.moved_at
    if is_occupied and still > patience:
        return f"occupied, and nothing moved for {still:.0f} s"
    return None
