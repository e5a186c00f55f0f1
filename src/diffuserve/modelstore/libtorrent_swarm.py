"""A swarm by libtorrent: private torrents, known only to the workers that the control plane names.

It listens on one address, and speaks TCP only to private addresses. It does not search for peers: it has no
tracker, no DHT and no local discovery, and opens no port of a router. Traffic is not encrypted.
"""

import ipaddress
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.extras import Extra
from diffuserve.domain.workers.peers import PRIVATE_NETWORKS, PeerAddress, is_private
from diffuserve.modelstore.manifest import Manifest, Piece, torrent_info
from diffuserve.modelstore.piece_hashes import bencode, pieces_root

if TYPE_CHECKING:
    import libtorrent as lt

log = logging.getLogger(__name__)

_ALL = ("0.0.0.0/0", "::/0")
_BLOCKED = 1  # libtorrent's flag of a range of addresses
_MAX_CONNECTIONS = 200
_MAX_ALERTS = 10_000
_MAX_FAILURES = 100  # to connect to a peer, which may be starting
_UNLIMITED = 0


class LibtorrentSwarm:
    """Peers over one listening port, for any number of models."""

    def __init__(self, host: str, port: int = 0) -> None:
        """Listen at a private address; with port 0 at any free port, else there or at one of the next ten.

        Raise `InvalidParams` if libtorrent is not installed, or if it cannot listen there.
        """
        self._lt = _libtorrent()
        if not is_private(host):
            raise InvalidParams("peers", host, "is no address of a private network: peers do not encrypt")
        self._session = self._lt.session(_settings(self._lt, host, port))
        self._passing = _private_alone(self._lt)
        self._session.set_ip_filter(self._passing)
        self._transfers: list[LibtorrentTransfer] = []
        self.address = PeerAddress(host, self._listen(host, port))

    def join(self, manifest: Manifest, folder: Path, present: Iterable[Piece]) -> "LibtorrentTransfer":
        """Join the swarm of a model whose files are in `folder`, which has these pieces already."""
        there = {piece.index for piece in present}
        params = self._lt.add_torrent_params()
        params.ti = self._lt.torrent_info(self._lt.bdecode(_torrent_of(manifest)))
        params.save_path = str(folder)
        params.flags &= ~self._lt.torrent_flags.auto_managed & ~self._lt.torrent_flags.paused
        params.info_hashes = params.ti.info_hashes()
        if len(there) == len(manifest.pieces):
            params.flags |= self._lt.torrent_flags.seed_mode  # each piece is hashed before it is first sent
        else:
            params.flags |= self._lt.torrent_flags.no_verify_files  # hashing holes takes long
            params.have_pieces = [piece.index in there for piece in manifest.pieces]
        transfer = LibtorrentTransfer(self, manifest, self._session.add_torrent(params), there)
        self._transfers.append(transfer)
        return transfer

    def drop(self, transfer: "LibtorrentTransfer") -> None:
        """Leave the swarm of a model."""
        if transfer in self._transfers:
            self._transfers.remove(transfer)
            self._session.remove_torrent(transfer.handle)

    def limit_upload(self, bytes_per_second: int | None) -> None:
        """Send no faster than this; `None` removes the limit."""
        limit = _UNLIMITED if bytes_per_second is None else bytes_per_second
        for peer_class in (self._lt.session.global_peer_class_id, self._lt.session.local_peer_class_id):
            settings = self._session.get_peer_class(peer_class)
            self._session.set_peer_class(peer_class, {**settings, "upload_limit": limit})

    def close(self) -> None:
        """Leave all models, and stop listening."""
        for transfer in list(self._transfers):
            transfer.leave()
        self._session.pause()

    def pump(self) -> None:
        """Pass libtorrent's alerts to their transfers."""
        for alert in self._session.pop_alerts():
            if isinstance(alert, self._lt.peer_ban_alert):
                self._ban(alert.ip[0])
            for transfer in self._transfers:
                if getattr(alert, "handle", None) == transfer.handle:
                    transfer.note(alert)

    def _ban(self, host: str) -> None:
        """Ban a host that sent bad data, as libtorrent would let it come back from another port."""
        self._passing.add_rule(host, host, _BLOCKED)
        self._session.set_ip_filter(self._passing)
        log.warning("%s sends what is not as the manifest says; it is a peer no more", host)

    def _listen(self, host: str, port: int) -> int:
        """Wait until the session listens; return its port."""
        lt, patience_ms = self._lt, 5_000
        while self._session.wait_for_alert(patience_ms):
            for alert in self._session.pop_alerts():
                if isinstance(alert, lt.listen_succeeded_alert):
                    return int(self._session.listen_port())
                if isinstance(alert, lt.listen_failed_alert):
                    raise InvalidParams("peers", f"{host}:{port}", f"cannot listen: {alert.message()}")
        raise InvalidParams("peers", f"{host}:{port}", "cannot listen there")


class LibtorrentTransfer:
    """A model in the swarm of this process."""

    def __init__(
        self, swarm: LibtorrentSwarm, manifest: Manifest, handle: "lt.torrent_handle", there: set[int]
    ) -> None:
        self._swarm, self._manifest, self.handle = swarm, manifest, handle
        self._lt = _libtorrent()
        self._there, self._added = set(there), set[int]()  # verified pieces, and pieces being verified
        # What is verified stays in memory until it is flushed, up to 100 MB of it; a kill would lose that.
        self._unwritten, self._flushing, self._written = list[Piece](), list[Piece](), list[Piece]()
        self._met = set[PeerAddress]()
        self._error: OSError | None = None

    def meet(self, peers: Iterable[PeerAddress]) -> None:
        """Connect to peers; those that were met before are tried again if they are not connected."""
        own = self._swarm.address
        for peer in set(peers) - self._met - {own}:
            self._met.add(peer)
            if is_private(peer.host):
                self.handle.connect_peer((peer.host, peer.port))

    def add(self, piece: Piece, content: memoryview) -> None:
        """Contribute a piece from elsewhere."""
        self._added.add(piece.index)
        self.handle.add_piece(piece.index, bytes(content), 0)

    def arrived(self) -> Sequence[Piece]:
        """Return the pieces that were verified and written since the last call."""
        self._flush()
        written, self._written = self._written, []
        return written

    def missing(self) -> Sequence[Piece]:
        """Return the pieces that neither this process nor a connected peer has."""
        copies = self.handle.piece_availability() or [0] * len(self._manifest.pieces)
        return [piece for piece in self.lacking() if not copies[piece.index]]

    def lacking(self) -> Sequence[Piece]:
        """Return the pieces that are not here, and have not been contributed."""
        known = self._there | self._added
        return [piece for piece in self._manifest.pieces if piece.index not in known]

    @property
    def num_received(self) -> int:
        """Return the bytes that peers have sent."""
        return int(self.handle.status().total_payload_download)

    @property
    def num_sent(self) -> int:
        """Return the bytes that peers have received."""
        return int(self.handle.status().total_payload_upload)

    @property
    def is_done(self) -> bool:
        """Return whether every piece is here and written. Raise `OSError` if the files cannot be written."""
        self._flush()
        if self._error is not None:
            raise self._error
        return len(self._there) == len(self._manifest.pieces) and not self._flushing

    def moved(self, folder: Path) -> None:
        """Continue with the files in their new folder."""
        self.handle.move_storage(str(folder), self._lt.move_flags_t.reset_save_path_unchecked)

    def leave(self) -> None:
        """Stop fetching and seeding this model."""
        self._swarm.drop(self)

    def _flush(self) -> None:
        """Process alerts, and flush verified pieces to the disk, one flush at a time."""
        self._swarm.pump()
        if self._unwritten and not self._flushing:
            self._flushing, self._unwritten = self._unwritten, []
            self.handle.flush_cache()

    def note(self, alert: Any) -> None:
        """Process an alert about this model."""
        if isinstance(alert, self._lt.piece_finished_alert):
            if alert.piece_index not in self._there:
                self._there.add(alert.piece_index)
                self._unwritten.append(self._manifest.pieces[alert.piece_index])
        elif isinstance(alert, self._lt.hash_failed_alert):
            self._added.discard(alert.piece_index)
            log.warning("%s: a peer sent a piece that is not as the manifest says", self._manifest.reference)
        elif isinstance(alert, self._lt.cache_flushed_alert):
            self._written += self._flushing
            self._flushing = []
        elif isinstance(alert, self._lt.file_error_alert):
            self._error = OSError(alert.error.value(), alert.message())


def _torrent_of(manifest: Manifest) -> bytes:
    """Return the torrent file of a model. It names no tracker, and its info-hash is the manifest's hash."""
    layers = {
        pieces_root(file.pieces): b"".join(map(bytes.fromhex, file.pieces))
        for file in manifest.files
        if len(file.pieces) > 1
    }
    return bencode({b"info": torrent_info(manifest), b"piece layers": layers})


def _libtorrent() -> Any:
    """Return the library. Raise `InvalidParams` if it is not installed."""
    try:
        import libtorrent
    except ImportError as error:
        remedy = f"needs libtorrent, which is not installed; {Extra.PEERS.remedy}"
        raise InvalidParams("peers", "true", remedy) from error
    return libtorrent


def _settings(lt: Any, host: str, port: int) -> dict[str, Any]:
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    kinds = lt.alert.category_t
    alerts = kinds.error_notification | kinds.status_notification | kinds.storage_notification
    return {
        "alert_mask": alerts | kinds.piece_progress_notification | kinds.peer_notification,
        "alert_queue_size": _MAX_ALERTS,
        "allow_multiple_connections_per_ip": True,  # several workers of one machine
        "connections_limit": _MAX_CONNECTIONS,
        "enable_dht": False,
        "enable_incoming_utp": False,
        "enable_lsd": False,
        "enable_natpmp": False,
        "enable_outgoing_utp": False,
        "enable_upnp": False,
        "listen_interfaces": place,
        "max_failcount": _MAX_FAILURES,
        "min_reconnect_time": 1,
        "outgoing_interfaces": host,
        "unchoke_slots_limit": -1,  # all peers are workers of one operator: none must upload to download
    }


def _private_alone(lt: Any) -> Any:
    """Return the filter that allows only private addresses."""
    passing = lt.ip_filter()
    for networks, flag in ((_ALL, _BLOCKED), (PRIVATE_NETWORKS, 0)):
        for first, last in _ranges(networks):
            passing.add_rule(first, last, flag)
    return passing


def _ranges(networks: Iterable[str]) -> Iterator[tuple[str, str]]:
    for network in map(ipaddress.ip_network, networks):
        yield str(network.network_address), str(network.broadcast_address)
