"""The place of a rank in its group, which the launcher tells it in its environment; it imports no torch."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "RANK_STORE", "RANK_SECRET")
_INHERITED = "fd:"


@dataclass(frozen=True)
class RankPlace:
    """A rank among `size`, and among the `size_here` of its machine.

    `store` is where it meets the others: `fd:` and an inherited connection, or a host and a port. `secret`
    is the group's.
    """

    rank: int
    size: int
    rank_here: int
    size_here: int
    store: str
    secret: bytes

    @property
    def environment(self) -> dict[str, str]:
        """The variables that tell a process its place; torch and NCCL read the first four, too."""
        numbers = map(str, (self.rank, self.size, self.rank_here, self.size_here))
        return dict(zip(_VARIABLES, (*numbers, self.store, self.secret.hex()), strict=True))

    @property
    def is_inherited(self) -> bool:
        """True if the process has a connection to the store from its start on."""
        return self.store.startswith(_INHERITED)

    def connect(self) -> socket.socket:
        """Connect to the store. Raise `OSError`."""
        if self.is_inherited:
            connection = socket.socket(fileno=int(self.store.removeprefix(_INHERITED)))
            connection.set_inheritable(False)
            return connection
        host, _, port = self.store.rpartition(":")
        return socket.create_connection((host, int(port)))


def inherited(connection: socket.socket) -> str:
    """Return the `store` of a rank that inherits this connection."""
    return f"{_INHERITED}{connection.fileno()}"


def own_place() -> RankPlace | None:
    """Return the place of this process; `None` if it is no rank."""
    environment: Mapping[str, str] = os.environ  # noqa: TID251 (the launcher sets it, no operator)
    if "RANK_STORE" not in environment:
        return None
    rank, size, rank_here, size_here, store, secret = (environment[name] for name in _VARIABLES)
    return RankPlace(int(rank), int(size), int(rank_here), int(size_here), store, bytes.fromhex(secret))
