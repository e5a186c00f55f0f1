"""A server of the Google Cloud Storage API, in this process.

`gcp-storage-emulator` stores the files. It implements the JSON API, and of the XML API what signed URLs
need. `obstore` uses only the XML API, so this module adds the rest: lists, deletions, HEAD, dates, tags.
"""

import itertools
import json
import threading
from datetime import UTC, datetime
from email.utils import format_datetime
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from gcp_storage_emulator.server import create_server
from obstore.store import GCSStore

from diffuserve.storage.bucket import BucketArtifactStore
from support.waiting import HANG_SECONDS

_NUMBERS = itertools.count()


class GcsServer:
    """Listens within a `with` block. `api` is a client of the JSON API, to inspect buckets."""

    def __enter__(self) -> "GcsServer":
        self._emulator = create_server("127.0.0.1", 0, in_memory=True)
        self._emulator.start()
        port = self._emulator._api._httpd.server_address[1]
        self.api = httpx.Client(base_url=f"http://127.0.0.1:{port}/storage/v1", timeout=HANG_SECONDS)
        self._media = f"http://127.0.0.1:{port}"
        handler = type("Handler", (_XmlApi,), {"api": self.api, "media": self._media})
        self._front = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self._front.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._front.server_address[1]}"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._front.shutdown()
        self._front.server_close()
        self._emulator.stop()
        self.api.close()

    def create_bucket(self) -> str:
        """Create a bucket with a new name, and return the name."""
        name = f"images-{next(_NUMBERS)}"
        self.api.post("/b", json={"name": name}).raise_for_status()
        return name

    def keys(self, bucket: str) -> set[str]:
        """Return the keys of all objects."""
        return {item["name"] for item in self.api.get(f"/b/{bucket}/o").json().get("items", [])}

    def store(self, bucket: str, prefix: str) -> BucketArtifactStore:
        """Return a store of the keys under `prefix`, with a private key to sign URLs."""
        account = {
            "gcs_base_url": self.url,
            "client_email": "tests@example.com",
            "private_key": _private_key(),
            "private_key_id": "tests",
        }
        return BucketArtifactStore(
            GCSStore(
                bucket,
                prefix=prefix,
                service_account_key=json.dumps(account),
                client_options={"allow_http": True},
                retry_config={"max_retries": 1},
            ),
            f"gs://{bucket}/{prefix}",
        )


@cache
def _private_key() -> str:
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return key.private_bytes(*form).decode()


def _http_date(moment: str) -> str:
    return format_datetime(datetime.fromisoformat(moment).astimezone(UTC), usegmt=True)


def _in_parts(*parts: tuple[str, bytes]) -> bytes:
    head = b"--part\r\ncontent-type: %b\r\n\r\n%b\r\n"
    return b"".join(head % (kind.encode(), content) for kind, content in parts) + b"--part--"


class _XmlApi(BaseHTTPRequestHandler):
    """Handles requests for `/bucket` and `/bucket/key`."""

    protocol_version = "HTTP/1.1"
    api: httpx.Client
    media: str

    def do_GET(self) -> None:
        bucket, key = self._split_path()
        if not key:
            return self._respond(200, {"content-type": "application/xml"}, self._list(bucket))
        headers = self._metadata(bucket, key)
        if headers is not None:
            content = self.api.get(f"{self.media}/{bucket}/{quote(key, safe='')}").content
            self._respond_with_range(headers, content)

    def do_HEAD(self) -> None:
        headers = self._metadata(*self._split_path())
        if headers is not None:
            self.send_response(200)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()

    def do_PUT(self) -> None:
        bucket, key = self._split_path()
        content = self.rfile.read(int(self.headers.get("content-length", 0)))
        content_type = self.headers.get("content-type", "application/octet-stream")
        name = json.dumps({"name": key}).encode()
        stored = self.api.post(  # multipart, since the emulator rejects an empty file otherwise
            f"{self.media}/upload/storage/v1/b/{bucket}/o?uploadType=multipart",
            headers={"content-type": "multipart/related; boundary=part"},
            content=_in_parts(("application/json", name), (content_type, content)),
        )
        if stored.status_code == 404:
            return self._respond(404, {}, b"<Error><Code>NoSuchBucket</Code></Error>")
        self._respond(stored.raise_for_status().status_code, {"etag": '"put"'})

    def do_DELETE(self) -> None:
        bucket, key = self._split_path()
        response = self.api.delete(f"/b/{bucket}/o/{quote(key, safe='')}")
        self._respond(404 if response.status_code == 404 else 204, {})

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def _split_path(self) -> tuple[str, str]:
        bucket, _, key = unquote(urlsplit(self.path).path).lstrip("/").partition("/")
        return bucket, key

    def _metadata(self, bucket: str, key: str) -> dict[str, str] | None:
        """Return the headers of an object; respond with 404 if there is none."""
        response = self.api.get(f"/b/{bucket}/o/{quote(key, safe='')}")
        if response.status_code != 200:
            self._respond(404, {})
            return None
        item = response.json()
        return {
            "etag": f'"{item["etag"]}"',
            "last-modified": _http_date(item["updated"]),
            "content-type": item.get("contentType", "application/octet-stream"),
            "content-length": str(item["size"]),
        }

    def _list(self, bucket: str) -> bytes:
        prefix = parse_qs(urlsplit(self.path).query).get("prefix", [""])[0]
        items = self.api.get(f"/b/{bucket}/o", params={"prefix": prefix}).json().get("items", [])
        rows = "".join(
            f"<Contents><Key>{escape(item['name'])}</Key><Size>{item['size']}</Size>"
            f"<LastModified>{item['updated']}</LastModified><ETag>{item['etag']}</ETag></Contents>"
            for item in items
        )
        return f"<ListBucketResult>{rows}</ListBucketResult>".encode()

    def _respond_with_range(self, headers: dict[str, str], content: bytes) -> None:
        """Respond with the range `bytes=START-LAST` that is asked for, or with all."""
        asked = self.headers.get("range", "").removeprefix("bytes=")
        if not asked:
            return self._respond(200, headers, content)
        start, last = map(int, asked.split("-"))
        part = content[start : last + 1]
        span = f"bytes {start}-{start + len(part) - 1}/{len(content)}"
        self._respond(206, headers | {"content-range": span}, part)

    def _respond(self, status: int, headers: dict[str, str], content: bytes = b"") -> None:
        self.send_response(status)
        for name, value in (headers | {"content-length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
