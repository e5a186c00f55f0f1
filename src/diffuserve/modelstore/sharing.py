"""Shares of the workers that fetch a model together: which pieces each reads from the bucket."""

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class PeerAddress:
    """The place at which a peer listens: a literal IP address and a port."""

    host: str
    port: int


@dataclass(frozen=True)
class Share:
    """The share of a model's pieces that one of several workers reads from the bucket.

    Those with an `index` below `num_readers` share all pieces; of `num_starting` workers the others read
    only what they have waited for in vain.
    """

    index: int = 0
    num_readers: int = 1
    num_starting: int = 1

    def has(self, piece: int, num_waits: int) -> bool:
        """Return whether a piece that nobody has is this worker's to read, after so many waits in vain.

        After the first wait one more worker reads each piece, after every further one twice as many.
        """
        if piece % self.num_readers == self.index:
            return True
        distance = (self.index - piece) % self.num_starting
        return num_waits > 0 and distance < 1 << (num_waits - 1)


@dataclass(frozen=True)
class Guidance:
    """Peers that have a model or fetch it, and this worker's share; without others it reads everything."""

    peers: tuple[PeerAddress, ...] = ()
    share: Share = Share()
