"""Times of leases, on which workers and control planes must agree."""

from diffuserve.domain.errors import InvalidParams

_HEARTBEATS_PER_LEASE = 3


def check_times(lease_seconds: float, heartbeat_seconds: float) -> None:
    """Raise `InvalidParams` if a single late heartbeat could let a lease expire."""
    if lease_seconds < _HEARTBEATS_PER_LEASE * heartbeat_seconds:
        raise InvalidParams(
            "heartbeat_seconds",
            heartbeat_seconds,
            f"must be at most a third of lease_seconds ({lease_seconds:g}), "
            "so that a late heartbeat loses no job",
        )
