"""Messages between an engine process and its agent about the peers of its model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class PeerAnnounced:
    """The engine process fetches the model with this hash with peers, or has it; it listens there."""

    model: str
    host: str
    port: int
    is_complete: bool = False


@dataclass(frozen=True, kw_only=True)
class PeersTold:
    """The control plane names peers, each a `PeerAddress` as a dict, and the three numbers of a `Share`."""

    peers: Sequence[Mapping[str, Any]]
    share: Sequence[int]
