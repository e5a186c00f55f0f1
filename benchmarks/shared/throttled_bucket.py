"""A bucket that sends to all readers no faster than it is told: as much of S3 as a model store reads."""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "models"
_CHUNK_BYTES = 64 * 1024
_DATE = "2026-01-01T00:00:00.000Z"
_HTTP_DATE = "Thu, 01 Jan 2026 00:00:00 GMT"


class ThrottledBucket(ThreadingHTTPServer):
    """Serves the files under `folder`, all readers together at `bytes_per_second`; `num_sent` counts."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, folder: Path, bytes_per_second: float) -> None:
        super().__init__(("127.0.0.1", 0), _Reader)
        self.folder, self.bytes_per_second, self.num_sent = folder, bytes_per_second, 0
        self._lock, self._free_at = threading.Lock(), 0.0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        """Return the settings that point a client of S3 to this bucket."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.server_address[1]}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "here",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }

    def handle_error(self, request: object, client_address: object) -> None:
        """Log nothing: readers may be killed on purpose."""

    def take_turn(self, num_bytes: int) -> None:
        """Wait until so many bytes may be sent."""
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + num_bytes / self.bytes_per_second
            pause = self._free_at - now
            self.num_sent += num_bytes
        time.sleep(pause)


class _Reader(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ThrottledBucket

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        key = unquote(parts.path).removeprefix(f"/{BUCKET}").strip("/")
        if not key:
            self._list(parse_qs(parts.query).get("prefix", [""])[0])
        elif (path := self.server.folder / key).is_file():
            self._send(path)
        else:
            self._reply(404, b"<Error><Code>NoSuchKey</Code></Error>", {})

    def _send(self, path: Path) -> None:
        size, asked = path.stat().st_size, self.headers.get("Range")
        first, last = (0, size - 1) if asked is None else map(int, asked.removeprefix("bytes=").split("-"))
        last = min(last, size - 1)
        with path.open("rb") as file:
            file.seek(first)
            content = file.read(last - first + 1)
        about = {"Content-Range": f"bytes {first}-{last}/{size}"} if asked else {}
        self._reply(206 if asked else 200, content, {"ETag": '"0"', "Last-Modified": _HTTP_DATE, **about})

    def _list(self, prefix: str) -> None:
        paths = sorted(path for path in self.server.folder.rglob("*") if path.is_file())
        keys = {path.relative_to(self.server.folder).as_posix(): path.stat().st_size for path in paths}
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{_DATE}</LastModified>"
            f'<ETag>"0"</ETag><Size>{size}</Size></Contents>'
            for key, size in keys.items()
            if key.startswith(prefix)
        )
        listed = f"<Name>{BUCKET}</Name><IsTruncated>false</IsTruncated>{entries}"
        self._reply(200, f"<ListBucketResult>{listed}</ListBucketResult>".encode(), {})

    def _reply(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        for start in range(0, len(content), _CHUNK_BYTES):
            chunk = content[start : start + _CHUNK_BYTES]
            self.server.take_turn(len(chunk))
            self.wfile.write(chunk)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""
