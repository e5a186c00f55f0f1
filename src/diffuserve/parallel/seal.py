"""Authentication of messages: HMAC-SHA256 with a secret that the ranks of one group share."""

import hashlib
import hmac
import secrets
import socket
import struct
import time

MAC_BYTES = 32
_NONCE_BYTES = 32
_MAX_BODY_BYTES = 1024 * 1024
_LENGTH = struct.Struct(">I")
_CLIENT, _SERVER = 0, 1


class NotProven(RuntimeError):
    """A message that is not authentic: without the secret, or changed, replayed or reordered."""


class Seal:
    """Authenticates messages of one purpose; those of another purpose or secret are refused."""

    def __init__(self, secret: bytes, *purpose: bytes) -> None:
        self._key = _mac(secret, *purpose)

    def proof(self, body: bytes, *place: int) -> bytes:
        """Return what proves `body` at one place alone, such as a number in a row."""
        return _mac(self._key, struct.pack(f">{len(place)}q", *place), body)

    def close(self, body: bytes, *place: int) -> bytes:
        """Return a message with its proof."""
        return body + self.proof(body, *place)

    def open(self, sealed: bytes, *place: int) -> bytes:
        """Return the message in what `close` returned for this place. Raise `NotProven` for anything else."""
        body, proof = sealed[:-MAC_BYTES], sealed[-MAC_BYTES:]
        if not hmac.compare_digest(proof, self.proof(body, *place)):
            raise NotProven("a message does not come from this group of ranks; it is not acted upon")
        return body


class SealedConnection:
    """A stream whose two ends are authenticated, as is each message by its number.

    Used by one thread at a time.
    """

    def __init__(
        self, stream: socket.socket, secret: bytes, *, is_server: bool = False, within: float | None = None
    ) -> None:
        """Exchange proofs, `within` seconds. Raise `NotProven`, or `OSError` if the other end is gone."""
        self._stream, self._deadline = stream, None if within is None else time.monotonic() + within
        self._own, self._other = (_SERVER, _CLIENT) if is_server else (_CLIENT, _SERVER)
        self._num_sent = self._num_received = 0
        self._seal = self._shake_hands(secret)

    def send(self, body: bytes) -> None:
        """Send a message of a megabyte at most. Raise `OSError` if the other end is gone."""
        assert len(body) <= _MAX_BODY_BYTES
        self._num_sent += 1
        sealed = self._seal.close(body, self._own, self._num_sent)
        self._stream.sendall(_LENGTH.pack(len(body)) + sealed)

    def receive(self) -> bytes:
        """Wait for the next message. Raise `NotProven`, or `OSError` if the other end is gone."""
        [length] = _LENGTH.unpack(self._receive(_LENGTH.size))
        if length > _MAX_BODY_BYTES:
            raise NotProven(f"a message of {length:,} bytes; none is longer than {_MAX_BODY_BYTES:,}")
        self._num_received += 1
        return self._seal.open(self._receive(length + MAC_BYTES), self._other, self._num_received)

    def settimeout(self, seconds: float | None) -> None:
        """Let a call that waits longer raise `TimeoutError`."""
        self._stream.settimeout(seconds)

    def close(self) -> None:
        self._stream.close()

    def _shake_hands(self, secret: bytes) -> Seal:
        """Return a seal for only this connection, which refuses messages of earlier ones."""
        own = secrets.token_bytes(_NONCE_BYTES)
        self._stream.sendall(own)
        other = self._receive(_NONCE_BYTES)
        client, server = (own, other) if self._own == _CLIENT else (other, own)
        seal = Seal(secret, b"connection", client, server)
        self._stream.sendall(seal.proof(b"", self._own, 0))
        seal.open(self._receive(MAC_BYTES), self._other, 0)
        self._deadline = None
        self._stream.settimeout(None)
        return seal

    def _receive(self, num_bytes: int) -> bytes:
        received = bytearray()
        while len(received) < num_bytes:
            if self._deadline is not None:  # for the whole handshake, even if its bytes arrive slowly
                self._stream.settimeout(max(self._deadline - time.monotonic(), 0.001))
            if not (part := self._stream.recv(min(num_bytes - len(received), 65_536))):
                raise ConnectionResetError("the other end has closed the connection")
            received += part
        return bytes(received)


def _mac(key: bytes, *parts: bytes) -> bytes:
    """Return the MAC of several parts, each preceded by its length so that bounds are unambiguous."""
    content = b"".join(_LENGTH.pack(len(part)) + part for part in parts)
    return hmac.digest(key, content, hashlib.sha256)
