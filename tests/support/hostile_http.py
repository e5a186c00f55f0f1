"""Random HTTP of honest and hostile clients: what each connection sends, and what it may be answered.

Every request that is one carries its own `x-request-id`, which its response repeats. What must not be taken
for a request carries one that begins with `smuggled`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

HOST = b"host: 127.0.0.1\r\n"
_PATHS = (b"/nowhere", b"/healthz", b"/v1/jobs", b"/v1/plan", b"/v1/models", b"/jobs/job_1")
_POSTS = (b"/nowhere", b"/healthz", b"/v1/jobs", b"/v1/session", b"/v1/files", b"/v1/batches", b"/generate")
_JSON = b"content-type: application/json\r\n"
_BODIES = (
    b"{}",
    b'{"input": {"prompt": "a"}}',
    b"[" * 500,
    b"\xff" * 40,
    b'{"key": "x"}',
    b'{"a":0,' * 2_000,
)
_SMUGGLED = b"GET /nowhere HTTP/1.1\r\n" + HOST + b"x-request-id: smuggled\r\n\r\n"
_UPGRADE = b"connection: upgrade\r\nupgrade: "
_WEBSOCKET = (
    _UPGRADE + b"websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)


@dataclass(frozen=True)
class Script:
    """Bytes that a connection sends, in pieces, and the ids of their requests; `is_cut` before all is read.

    A fault at the end may get an error, which has no id, or `fault` if it was answered before it was seen.
    """

    pieces: Sequence[bytes]
    ids: Sequence[str]
    num_messages: int
    ends_in_fault: bool
    is_cut: bool


class Scripts:
    """Draws scripts, the same for the same seed. `keys` are those of a tenant and a worker."""

    def __init__(self, seed: int, keys: Sequence[str], job_id: str) -> None:
        self._random = Random(seed)
        self._keys = (b"", *(b"authorization: Bearer %b\r\n" % key.encode() for key in keys))
        self._watched = b"/v1/jobs/%b/ws" % job_id.encode()
        self._tenant = self._keys[1]
        self._num_ids = 0

    def draw(self) -> Script:
        """Return the next script."""
        random = self._random
        honest, faults = list(_HONEST), list(_FAULTS)
        messages: list[bytes] = []
        ids: list[str] = []
        for _ in range(random.randint(1, 8)):
            self._num_ids += 1
            ids.append(f"{random.choice(['a', 'b'])}-{self._num_ids}")
            messages.append(random.choice(honest)(self, b"x-request-id: %b\r\n" % ids[-1].encode()))
        ends_in_fault, is_cut = random.random() < 0.5, random.random() < 0.1
        last = random.choice(faults)(self) if ends_in_fault else self._last()
        ids += [] if ends_in_fault else ["last"]
        whole = b"".join([*messages, last])
        if is_cut:
            whole = whole[: random.randrange(len(whole))]
        return Script(self._split(whole), ids, len(messages) + 1, ends_in_fault, is_cut)

    def _last(self) -> bytes:
        return b"GET /nowhere HTTP/1.1\r\n" + HOST + b"x-request-id: last\r\nconnection: close\r\n\r\n"

    def _split(self, whole: bytes) -> Sequence[bytes]:
        cuts = sorted(
            self._random.randrange(len(whole) + 1) for _ in range(self._random.choice((0, 1, 3, 12)))
        )
        return [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]

    def _head(self, method: bytes, path: bytes, *lines: bytes) -> bytes:
        key = self._random.choice(self._keys)
        return b"%b %b HTTP/1.1\r\n%b%b%b\r\n" % (method, path, HOST, key, b"".join(lines))

    # Messages of honest clients; `marker` is the line of the header.

    def _get(self, marker: bytes) -> bytes:
        lines = [b"x-%d: y\r\n" % number for number in range(self._random.choice((0, 3, 100)))]
        return self._head(b"GET", self._random.choice(_PATHS), marker, *lines)

    def _ignored_upgrade(self, marker: bytes) -> bytes:
        return self._head(b"GET", self._random.choice(_PATHS), marker, _UPGRADE, b"h2c\r\n")

    def _after_blank_lines(self, marker: bytes) -> bytes:
        return b"\r\n" * self._random.randint(1, 5) + self._get(marker)

    def _body(self) -> bytes:
        body = self._random.choice(_BODIES)
        return body + b" " * self._random.choice((0, 0, 1, 300_000))

    def _post(self, marker: bytes) -> bytes:
        body, path = self._body(), self._random.choice(_POSTS)
        return self._head(b"POST", path, marker, _JSON, b"content-length: %d\r\n" % len(body)) + body

    def _expecting(self, marker: bytes) -> bytes:
        body = self._body()
        lines = (marker, _JSON, b"expect: 100-continue\r\n", b"content-length: %d\r\n" % len(body))
        return self._head(b"POST", self._random.choice(_POSTS), *lines) + body

    def _chunked(self, marker: bytes) -> bytes:
        path = self._random.choice(_POSTS)
        head = self._head(b"POST", path, marker, _JSON, b"transfer-encoding: chunked\r\n")
        trailers = (
            b"",
            b"x-request-id: smuggled\r\n",
            b"authorization: Bearer smuggled\r\n",
            b"a: b\r\n" * 500,
        )
        return head + self._chunks() + b"0\r\n" + self._random.choice(trailers) + b"\r\n"

    def _chunks(self) -> bytes:
        rest, chunks = self._body(), bytearray()
        while rest:
            size = self._random.choice((1, 7, 100_000))
            if len(rest) > 5_000:
                size *= 1_000
            chunk, rest = rest[:size], rest[size:]
            size_line = self._random.choice((b"%x", b"%X", b"0%x", b"%x;name=value")) % len(chunk)
            chunks += size_line + b"\r\n" + chunk + b"\r\n"
        return bytes(chunks)

    # Faults, after which nothing may be served.

    def _ambiguous(self) -> bytes:
        line = self._random.choice(
            (
                b"content-length: 6\r\ntransfer-encoding: chunked\r\n",
                b"transfer-encoding: chunked\r\ncontent-length: 6\r\n",
                b"content-length: 0\r\ncontent-length: 5\r\n",
                b"content-length: +0\r\n",
                b"content-length: 0, 0\r\n",
                b"content-length: -1\r\n",
                b"content-length: 0x0\r\n",
                b"content-length : 0\r\n",
                b"content-length: 99999999999999999999\r\n",
                b"transfer-encoding: xchunked\r\n",
                b"transfer-encoding: chunked, identity\r\n",
                b"x: a\rcontent-length: 5\r\n",
                b"x: a\ncontent-length: 0\n",
                b"x: a\0b\r\n",
                b"x y: z\r\n",
                b": empty\r\n",
                b"host: evil\r\n",
            )
        )
        return (
            self._head(b"POST", b"/healthz", line, b"x-request-id: smuggled\r\n") + b"0\r\n\r\n" + _SMUGGLED
        )

    def _broken_line(self) -> bytes:
        first = self._random.choice(
            (
                b"GET /healthz",
                b"GET /healthz HTTP/9.9",
                b"GET /health z HTTP/1.1",
                b"G\0T /healthz HTTP/1.1",
                b"PRI * HTTP/2.0",
                b"CONNECT a:1 HTTP/1.1",
                b"\x16\x03\x01\x02",
                self._random.randbytes(40),
            )
        )
        return first + b"\r\n" + HOST + b"\r\n" + _SMUGGLED

    def _no_host(self) -> bytes:
        return b"GET /nowhere HTTP/1.1\r\nx-request-id: smuggled\r\n\r\n" + _SMUGGLED

    def _large_head(self) -> bytes:
        line = self._random.choice(
            (b"x: " + b"y" * 90_000 + b"\r\n", b"x: y\r\n" * 140, b"a: b\r\n" * 30_000)
        )
        return self._head(b"GET", b"/nowhere", line) + _SMUGGLED

    def _large_path(self) -> bytes:
        return self._head(b"GET", b"/" + b"x" * 90_000) + _SMUGGLED

    def _broken_chunks(self) -> bytes:
        broken = self._random.choice(
            (
                b"5\r\nabcdefgh\r\n",
                b"-1\r\n\r\n",
                b"0x5\r\nabcde\r\n",
                b"fffffffffffffffff\r\nabc",
                b" 5\r\nabcde\r\n",
                b"5 \r\nabcde\r\n",
                b"1;" + b"x" * 20_000,
                b"0\r\n" + b"a: b\r\n" * 60_000,
                b"0\r\na: " + b"b" * 300_000,
                b"0\r\na b\r\n\r\n",
            )
        )
        head = self._head(b"POST", b"/nowhere", b"x-request-id: fault\r\ntransfer-encoding: chunked\r\n")
        return head + self._chunks() + broken + _SMUGGLED

    def _upgrade_with_body(self) -> bytes:
        protocol = self._random.choice((_WEBSOCKET, _UPGRADE + b"h2c\r\n", _UPGRADE + b"a\r\n"))
        framing = self._random.choice(
            (b"content-length: %d\r\n" % len(_SMUGGLED), b"transfer-encoding: chunked\r\n")
        )
        return self._head(b"POST", b"/healthz", protocol, framing) + _SMUGGLED

    def _handshake(self) -> bytes:
        """Return a handshake, good or not, and frames that should not follow it yet."""
        path = self._random.choice((self._watched, b"/nowhere", b"/healthz", b"/v1/jobs/\xff/ws"))
        lines = self._random.choice((b"", b"x: " + b"y" * 20_000 + b"\r\n", b"sec-websocket-version: 12\r\n"))
        head = b"GET %b HTTP/1.1\r\n%b" % (path, HOST) + self._tenant + _WEBSOCKET + lines + b"\r\n"
        return head + self._frames()

    def _frames(self) -> bytes:
        random, frames = self._random, bytearray()
        for _ in range(random.choice((0, 1, 50))):
            opcode, size = random.choice((0, 1, 2, 8, 9, 10, 3)), random.choice((0, 5, 125))
            frames += bytes([random.choice((0x80, 0, 0xC0)) | opcode, 0x80 | size]) + bytes(4 + size)
        huge = b"\x82\xff" + (1 << 40).to_bytes(8, "big") + bytes(4)
        return bytes(frames) + random.choice((b"", huge, random.randbytes(300)))


_HONEST: tuple[Callable[[Scripts, bytes], bytes], ...] = (
    Scripts._get,
    Scripts._ignored_upgrade,
    Scripts._after_blank_lines,
    Scripts._post,
    Scripts._expecting,
    Scripts._chunked,
)
_FAULTS: tuple[Callable[[Scripts], bytes], ...] = (
    Scripts._ambiguous,
    Scripts._broken_line,
    Scripts._no_host,
    Scripts._large_head,
    Scripts._broken_chunks,
    Scripts._upgrade_with_body,
    Scripts._handshake,
)
