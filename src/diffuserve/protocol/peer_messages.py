"""Messages between an engine process and its agent about the peers of its model."""

from dataclasses import dataclass

from diffuserve.domain.workers.peers import PeerAdvice


@dataclass(frozen=True, kw_only=True)
class PeerAnnounced:
    """The engine process has or fetches the model with this hash, and listens for peers at this address."""

    model: str
    host: str
    port: int
    is_complete: bool = False


@dataclass(frozen=True, kw_only=True)
class PeersTold:
    """The control plane names peers, and a share of the reads."""

    advice: PeerAdvice
