"""A server that speaks Google Cloud Storage, in this process, for tests.

Files are kept by `gcp-storage-emulator`, which speaks the JSON API and so much of the XML API as signed
URLs need. `obstore` speaks the XML API alone; what is missing of that (lists, deletions, HEAD, dates and
tags) is translated here.
"""

import itertools
import json
import threading
from datetime import UTC, datetime
from email.utils import format_datetime
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
    """Listens within the block. `api` speaks the JSON API, to look behind a store."""

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
        name = f"images-{next(_NUMBERS)}"
        self.api.post("/b", json={"name": name}).raise_for_status()
        return name

    def keys(self, bucket: str) -> set[str]:
        return {one["name"] for one in self.api.get(f"/b/{bucket}/o").json().get("items", [])}

    def store(self, bucket: str, prefix: str) -> BucketArtifactStore:
        """Of the part of the bucket that is under `prefix`; URLs are signed with a key made here."""
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
            )
        )


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
    """One request; `/bucket` and `/bucket/key`."""

    protocol_version = "HTTP/1.1"
    api: httpx.Client
    media: str

    def do_GET(self) -> None:
        bucket, key = self._place()
        if not key:
            return self._answer(200, {"content-type": "application/xml"}, self._list(bucket))
        found = self._metadata(bucket, key)
        if found is not None:
            content = httpx.get(f"{self.media}/{bucket}/{quote(key, safe='')}").content
            self._answer(200, found, content)

    def do_HEAD(self) -> None:
        found = self._metadata(*self._place())
        if found is not None:
            self.send_response(200)
            for name, value in found.items():
                self.send_header(name, value)
            self.end_headers()

    def do_PUT(self) -> None:
        bucket, key = self._place()
        content = self.rfile.read(int(self.headers.get("content-length", 0)))
        content_type = self.headers.get("content-type", "application/octet-stream")
        name = json.dumps({"name": key}).encode()
        httpx.post(  # in parts, since the emulator takes no empty file otherwise
            f"{self.media}/upload/storage/v1/b/{bucket}/o?uploadType=multipart",
            headers={"content-type": "multipart/related; boundary=part"},
            content=_in_parts(("application/json", name), (content_type, content)),
        ).raise_for_status()
        self._answer(200, {"etag": '"put"'})

    def do_DELETE(self) -> None:
        bucket, key = self._place()
        answer = self.api.delete(f"/b/{bucket}/o/{quote(key, safe='')}")
        self._answer(404 if answer.status_code == 404 else 204, {})

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""

    def _place(self) -> tuple[str, str]:
        bucket, _, key = unquote(urlsplit(self.path).path).lstrip("/").partition("/")
        return bucket, key

    def _metadata(self, bucket: str, key: str) -> dict[str, str] | None:
        answer = self.api.get(f"/b/{bucket}/o/{quote(key, safe='')}")
        if answer.status_code != 200:
            self._answer(404, {})
            return None
        found = answer.json()
        return {
            "etag": f'"{found["etag"]}"',
            "last-modified": _http_date(found["updated"]),
            "content-type": found.get("contentType", "application/octet-stream"),
            "content-length": str(found["size"]),
        }

    def _list(self, bucket: str) -> bytes:
        prefix = parse_qs(urlsplit(self.path).query).get("prefix", [""])[0]
        items = self.api.get(f"/b/{bucket}/o", params={"prefix": prefix}).json().get("items", [])
        rows = "".join(
            f"<Contents><Key>{escape(one['name'])}</Key><Size>{one['size']}</Size>"
            f"<LastModified>{one['updated']}</LastModified><ETag>{one['etag']}</ETag></Contents>"
            for one in items
        )
        return f"<ListBucketResult>{rows}</ListBucketResult>".encode()

    def _answer(self, status: int, headers: dict[str, str], content: bytes = b"") -> None:
        self.send_response(status)
        for name, value in (headers | {"content-length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
