"""A fake of the Hugging Face hub, as far as downloads of models need it.

It serves one repository with a few commits: the description of a revision, the list of its files, and the
files with the headers `ETag`, `X-Linked-Etag`, `X-Linked-Size` and `X-Repo-Commit`, also in ranges. It fakes
no CDN, no Xet storage and no login: a gated or unknown repository is one whose responses say so.
"""

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import huggingface_hub.constants
import pytest

LARGE_BYTES = 4_000
"""Size from which this hub keeps a file as the real one keeps large files, by its SHA-256."""


@dataclass
class FakeHub:
    """The repository `repo_id` at `commit`, to which the branch `main` and the tag `v1` point.

    With `error` every response is 401 or 404 with that `X-Error-Code`. The first response with a file in
    `cut_after` ends after so many bytes.
    """

    repo_id: str
    commit: str
    files: Mapping[str, bytes]
    url: str = ""
    error: str = ""
    cut_after: dict[str, int] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    """Method, path and `Range` of each request."""

    def fetched(self) -> list[str]:
        """Return the files that were read, one for each request."""
        return [
            path.split("/resolve/")[1].split("/", 1)[1]
            for method, path, _ in self.requests
            if method == "GET" and "/resolve/" in path
        ]

    def tree(self) -> list[dict[str, Any]]:
        """Return the list of files as the hub writes it."""
        return [self._entry(path, content) for path, content in self.files.items()]

    def _entry(self, path: str, content: bytes) -> dict[str, Any]:
        entry: dict[str, Any] = {"type": "file", "path": path, "size": len(content), "oid": git_id(content)}
        if len(content) >= LARGE_BYTES:
            entry["lfs"] = {"oid": sha256(content), "size": len(content), "pointerSize": 130}
        return entry


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def git_id(content: bytes) -> str:
    """Return the name that git gives a file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextmanager
def fake_hub(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve the hub on a free port of this machine within the block."""

    class Handler(_Handler):
        served = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def use_hub(served: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the hub's library use this server and this cache, as HF_ENDPOINT and HF_HUB_CACHE would."""
    constants = huggingface_hub.constants
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, served.url)
    monkeypatch.setattr(constants, "ENDPOINT", served.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))


class _Handler(BaseHTTPRequestHandler):
    served: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._respond()

    def do_GET(self) -> None:
        self._respond()

    def _respond(self) -> None:
        hub, path = self.served, unquote(urlsplit(self.path).path)
        hub.requests.append((self.command, path, self.headers.get("Range", "")))
        api = re.fullmatch(rf"/api/models/{re.escape(hub.repo_id)}/(revision|tree)/(.+)", path)
        file = re.fullmatch(rf"/{re.escape(hub.repo_id)}/resolve/([^/]+)/(.+)", path)
        known = (hub.commit, "main", "v1")
        if hub.error:
            self._refuse(hub.error)
        elif api is None and file is None:
            self._refuse("RepoNotFound")
        elif (api[2] if api else file[1] if file else "") not in known:
            self._refuse("RevisionNotFound")
        elif api:
            self._json(hub.tree() if api[1] == "tree" else {"id": hub.repo_id, "sha": hub.commit})
        elif file:
            self._file(file[2])

    def _refuse(self, code: str) -> None:
        self._send({"GatedRepo": 403, "RevisionNotFound": 404}.get(code, 401), b"", {"X-Error-Code": code})

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _file(self, path: str) -> None:
        content = self.served.files[path]
        entry = next(entry for entry in self.served.tree() if entry["path"] == path)
        tag = entry["lfs"]["oid"] if "lfs" in entry else entry["oid"]
        headers = {"ETag": f'"{tag}"', "X-Repo-Commit": self.served.commit}
        if "lfs" in entry:
            headers |= {"X-Linked-Etag": f'"{tag}"', "X-Linked-Size": str(len(content))}
        start = self._start()
        body = content[start:]
        if path in self.served.damaged:
            body = body[::-1]
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        cut = self.served.cut_after.pop(path, None) if self.command == "GET" else None
        self._send(206 if start else 200, body, headers, cut)

    def _start(self) -> int:
        given = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        return int(given[1]) if given else 0

    def _send(self, status: int, body: bytes, headers: Mapping[str, str], cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[:cut])
        if cut is not None:
            self.close_connection = True
