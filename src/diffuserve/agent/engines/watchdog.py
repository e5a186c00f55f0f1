"""Decides from the times of an engine's messages whether it still works. Pure."""

from dataclasses import dataclass, replace

from diffuserve.agent.config import WorkerConfig
from diffuserve.protocol.messages import EngineHeartbeat

_PATIENCE_STEPS = 10.0


@dataclass(frozen=True)
class Pulse:
    """The engine's last heartbeat and its last progress; times are the agent's monotonic clock's."""

    heartbeat_at: float
    progress_at: float
    num_moves: int = 0
    longest_step_seconds: float = 0.0
    predicted_seconds: float = 0.0

    def after_heartbeat(self, heartbeat: EngineHeartbeat, now: float) -> "Pulse":
        """Return the pulse after a heartbeat, which is progress only if it counts more moves.

        Or if all that is left waits for adapters: they load beside the steps, of which there can be none.
        """
        only_waits = heartbeat.num_unfinished > 0 and heartbeat.num_awaiting >= heartbeat.num_unfinished
        has_moved = heartbeat.num_moves != self.num_moves or only_waits
        progress_at = now if has_moved else self.progress_at
        return Pulse(
            heartbeat_at=now,
            progress_at=progress_at,
            num_moves=heartbeat.num_moves,
            longest_step_seconds=heartbeat.longest_step_seconds,
            predicted_seconds=heartbeat.predicted_seconds,
        )

    def after_progress(self, now: float) -> "Pulse":
        """Return the pulse after a job advanced, or an idle engine got its first job."""
        return replace(self, progress_at=now)


def stall_reason(pulse: Pulse, is_occupied: bool, now: float, config: WorkerConfig) -> str | None:
    """Return why the engine counts as stuck, or `None` if it does not.

    An occupied engine may go without progress for `stall_seconds`, for ten times its longest step, or for ten
    times the prediction for its current work: a first step may take longer than anything measured so far.
    """
    silence = now - pulse.heartbeat_at
    if silence > config.silence_seconds:
        return f"no heartbeat for {silence:.0f} s"
    step_seconds = max(pulse.longest_step_seconds, pulse.predicted_seconds)
    patience = max(config.stall_seconds, _PATIENCE_STEPS * step_seconds)
    still = now - pulse.progress_at
    if is_occupied and still > patience:
        return f"occupied, and no progress for {still:.0f} s"
    return None
