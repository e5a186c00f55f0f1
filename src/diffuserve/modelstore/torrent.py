"""A model as a private BitTorrent v2 torrent, built from its manifest."""

from diffuserve.modelstore.manifest import Manifest, torrent_info
from diffuserve.modelstore.piece_hashes import bencode, pieces_root


def torrent_of(manifest: Manifest) -> bytes:
    """Return the torrent file of a model. It names no tracker, and its info-hash is the manifest's hash."""
    layers = {
        pieces_root(file.pieces): b"".join(map(bytes.fromhex, file.pieces))
        for file in manifest.files
        if len(file.pieces) > 1
    }
    return bencode({b"info": torrent_info(manifest), b"piece layers": layers})
