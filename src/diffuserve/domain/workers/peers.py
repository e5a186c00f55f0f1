"""Workers that fetch a model together: their reports, and the pieces that each of them reads."""

import ipaddress
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, Field

from diffuserve.domain.backend_urls import LAST_PORT
from diffuserve.domain.bounds import Amount
from diffuserve.domain.resource_base import Resource
from diffuserve.domain.text.path_parts import Sha256

PRIVATE_NETWORKS = (
    *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "127.0.0.0/8"),
    *("fc00::/7", "::1"),
)
_FLEET_READS = 16
MAX_READS = 4
JOIN_SECONDS = 1.0
"""Seconds from the first report of a model, within which workers report it that share its reads."""


def is_private(host: str) -> bool:
    """Return whether a host is a literal address of a private network, or this machine's own."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return any(address in ipaddress.ip_network(network) for network in PRIVATE_NETWORKS)


def _private(host: str) -> str:
    if not is_private(host):
        raise ValueError("is no address of a private network")
    return host


@dataclass(frozen=True, order=True)
class PeerAddress:
    """Place at which a peer listens: a literal IP address and a port."""

    host: Annotated[str, AfterValidator(_private)]
    port: Annotated[int, Field(ge=1, le=LAST_PORT)]


@dataclass(frozen=True, kw_only=True)
class PeerReport:
    """A worker's report that it has or fetches the model with this hash.

    `since` is the time of its first report by the store's clock; the store overwrites the worker's value.
    """

    model: Sha256
    address: PeerAddress
    is_complete: bool = False
    since: Amount = 0.0


@dataclass(frozen=True)
class Share:
    """The share of a model's pieces that one of several workers reads from the bucket.

    Workers with an `index` below `num_readers` divide all pieces among them; the others of `num_starting`
    workers read only pieces for which they waited too long.
    """

    index: int = 0
    num_readers: int = 1
    num_starting: int = 1

    def has(self, piece: int, num_waits: int) -> bool:
        """Return whether this worker must read a piece that no peer has, after so many timeouts.

        After the first wait one more worker reads each piece, after every further one twice as many.
        """
        if piece % self.num_readers == self.index:
            return True
        distance = (self.index - piece) % self.num_starting
        return num_waits > 0 and distance < 1 << (num_waits - 1)

    def reads_at_once(self, num_waits: int) -> int:
        """Return how many pieces the worker reads from the bucket at a time, 1 to 4.

        All workers together read 16 at most, or one each: of more, on a slow bucket, none would end in time.
        """
        num_reading = self.num_starting if num_waits else self.num_readers
        return min(max(_FLEET_READS // num_reading, 1), MAX_READS)


@dataclass(frozen=True)
class PeerAdvice(Resource):
    """Peers of a worker, and its share of a model's pieces; without peers it reads all of them."""

    peers: tuple[PeerAddress, ...] = ()
    share: Share = Share()


UNADVISED = PeerAdvice((), Share(1, 1, 1))
"""Advice before there is any: nothing is read until a wait in vain."""
