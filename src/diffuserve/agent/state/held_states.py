"""The states of a job that a worker holds, and the moves from one to another."""

from collections.abc import Mapping
from enum import StrEnum


class HeldState(StrEnum):
    """The place of a held job.

    It is `TAKEN` with its lease, `AWAITS_MODEL` while that is loaded, and `FETCHING` while the files that it
    reads are. Then it is `IN_ENGINE`; once `PREEMPTING` the engine is to give its last checkpoint. When the
    engine has finished or lost it, or it is released, it has `LEFT`: what became of it is reported.
    """

    TAKEN = "taken"
    AWAITS_MODEL = "awaits_model"
    FETCHING = "fetching"
    IN_ENGINE = "in_engine"
    PREEMPTING = "preempting"
    LEFT = "left"


MOVES: Mapping[HeldState, frozenset[HeldState]] = {
    HeldState.TAKEN: frozenset(
        {HeldState.AWAITS_MODEL, HeldState.FETCHING, HeldState.IN_ENGINE, HeldState.LEFT}
    ),
    HeldState.AWAITS_MODEL: frozenset({HeldState.FETCHING, HeldState.IN_ENGINE, HeldState.LEFT}),
    HeldState.FETCHING: frozenset({HeldState.IN_ENGINE, HeldState.LEFT}),
    HeldState.IN_ENGINE: frozenset({HeldState.PREEMPTING, HeldState.LEFT}),
    HeldState.PREEMPTING: frozenset({HeldState.LEFT}),
    HeldState.LEFT: frozenset(),
}
"""The states that may follow each state."""

BEFORE_ENGINE = frozenset({HeldState.TAKEN, HeldState.AWAITS_MODEL, HeldState.FETCHING})
"""The states in which an engine does not know the job yet, although it counts in that engine's load."""


class JobCommand(StrEnum):
    """A command of the control plane about a job, which is told that it came, whatever the job's state."""

    CANCEL = "cancel"
    PREEMPT = "preempt"
