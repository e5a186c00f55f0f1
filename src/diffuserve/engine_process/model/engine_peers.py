"""An engine process among the peers that fetch its model, by the advice that its agent passes on."""

from diffuserve.domain.backend_urls import LAST_PORT
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.workers.peers import UNADVISED, PeerAdvice
from diffuserve.engine_process.agent_link import AgentLink
from diffuserve.modelstore.libtorrent_swarm import LibtorrentSwarm
from diffuserve.modelstore.manifest import Manifest, parse_reference
from diffuserve.modelstore.swarm_download import SharedDownload
from diffuserve.protocol.config import EngineProcessConfig
from diffuserve.protocol.peer_messages import PeerAnnounced, PeersTold


class EnginePeers:
    """Announces to the agent what this process fetches and has. `told` and `limit` are for any thread."""

    def __init__(self, address: str, config: EngineProcessConfig, link: AgentLink) -> None:
        """Listen at `address`. Raise `InvalidParams`."""
        self._link, self._busy_bytes = link, config.peer_upload_bytes
        self._swarm = LibtorrentSwarm(*parse_address(address))
        self._announced, self._advice = "", UNADVISED
        self._is_limited = False
        self.together = SharedDownload(self._swarm, self._guide)

    def told(self, message: PeersTold) -> None:
        """Follow new advice."""
        self._advice = message.advice

    def have(self, reference: str) -> None:
        """Announce that this process has a whole model, by its name and hash."""
        self._announce(parse_reference(reference).digits, is_complete=True)

    def limit(self, is_busy: bool) -> None:
        """Send to peers no faster than configured while there are jobs."""
        if is_busy is not self._is_limited:
            self._is_limited = is_busy
            self._swarm.limit_upload(self._busy_bytes if is_busy else None)

    def _guide(self, manifest: Manifest) -> PeerAdvice:
        if manifest.hash != self._announced:
            self._announce(manifest.hash, is_complete=False)
        return self._advice

    def _announce(self, model: str, is_complete: bool) -> None:
        self._announced = model
        address = self._swarm.address
        self._link.send(
            PeerAnnounced(model=model, host=address.host, port=address.port, is_complete=is_complete)
        )


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of `HOST`, `HOST:PORT` or `[HOST]:PORT`; port 0 where none is given.

    Raise `InvalidParams`.
    """
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")):
        return text.strip("[]"), 0
    if not port.isdecimal() or int(port) > LAST_PORT:
        raise InvalidParams("peers", text, "must be an address, or ADDRESS:PORT")
    return host.strip("[]"), int(port)
