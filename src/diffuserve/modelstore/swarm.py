"""The interface of a swarm: peers that fetch a model together, and are sources for one another."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from diffuserve.domain.workers.peers import PeerAddress
from diffuserve.modelstore.manifest import Manifest, Piece


class Transfer(Protocol):
    """A model that this process fetches with its peers or seeds to them. Used by one thread.

    Pieces from peers and from `add` are verified, and then written into the files.
    """

    def meet(self, peers: Iterable[PeerAddress]) -> None:
        """Connect to peers; those that were met before are tried again if they are not connected."""
        ...

    def add(self, piece: Piece, content: memoryview) -> None:
        """Contribute a piece from elsewhere."""
        ...

    def arrived(self) -> Sequence[Piece]:
        """Return the pieces that were verified and written since the last call."""
        ...

    def missing(self) -> Sequence[Piece]:
        """Return the pieces that neither this process nor a connected peer has."""
        ...

    def lacking(self) -> Sequence[Piece]:
        """Return the pieces that are not here, and have not been contributed."""
        ...

    @property
    def num_received(self) -> int:
        """Return the bytes that peers have sent."""
        ...

    @property
    def is_done(self) -> bool:
        """Return whether every piece is here and written. Raise `OSError` if the files cannot be written."""
        ...

    def moved(self, folder: Path) -> None:
        """Continue with the files in their new folder."""
        ...

    def leave(self) -> None:
        """Stop fetching and seeding this model."""
        ...


class Swarm(Protocol):
    """Peers, including this process, that exchange pieces of models."""

    def join(self, manifest: Manifest, folder: Path, present: Iterable[Piece]) -> Transfer:
        """Join the swarm of a model whose files are in `folder`, which has these pieces already."""
        ...
