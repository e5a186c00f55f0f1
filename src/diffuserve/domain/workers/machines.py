"""Machines on which workers run."""

from enum import StrEnum


class MachineKind(StrEnum):
    """Kind of a worker's machine: one that stays, or one that may be taken away."""

    ON_DEMAND = "on_demand"
    SPOT = "spot"

    @classmethod
    def of(cls, is_spot: bool) -> "MachineKind":
        """Return the kind of a machine by `is_spot`."""
        return cls.SPOT if is_spot else cls.ON_DEMAND
