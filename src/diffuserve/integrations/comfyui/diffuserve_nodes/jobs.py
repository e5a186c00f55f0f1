"""Jobs of a diffuserve server: submitted, followed and fetched with the standard library alone."""

import json
import os
import queue
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Any

ENDED = frozenset({"succeeded", "failed", "canceled", "expired"})
_SECONDS = 60.0  # for a response; events come every 15 seconds at least
_LOOK_SECONDS = 0.5  # between two looks whether ComfyUI was interrupted


class DrawingFailed(RuntimeError):
    """Raised with what the server says of a request, or of a job without a result."""


def call(method: str, path: str, body: Any = None, content_type: str = "application/json") -> Any:
    """Call the server, and return its JSON. Raise `DrawingFailed`."""
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    with _opened(method, _url(path), data, content_type) as answer:
        return json.load(answer)


def fetched(url: str) -> bytes:
    """Return a finished file, whose URL needs no key."""
    with urllib.request.urlopen(url, timeout=_SECONDS) as answer:  # noqa: S310 (a URL of the server's)
        content: bytes = answer.read()
        return content


def uploaded(png: bytes) -> str:
    """Return the id of an image that is stored."""
    return str(call("POST", "/v1/files", png, "image/png")["id"])


def finished(
    job: Mapping[str, Any],
    check_interrupted: Callable[[], None],
    on_event: Callable[[str, Mapping[str, Any]], None],
) -> Mapping[str, Any]:
    """Return a job once it has succeeded; hand its events to `on_event` until then.

    `check_interrupted` raises if ComfyUI was interrupted, and the job is canceled. Raise `DrawingFailed`.
    """
    path = f"/v1/jobs/{job['id']}"
    try:
        for kind, data in _events(path, check_interrupted):
            on_event(kind, data)
    except BaseException:
        call("POST", f"{path}/cancel")
        raise
    found: Mapping[str, Any] = call("GET", f"{path}?wait=60")
    while found["status"] not in ENDED:  # the events broke off
        check_interrupted()
        found = call("GET", f"{path}?wait=5")
    if found["status"] != "succeeded":
        raise DrawingFailed((found.get("error") or {}).get("message") or f"the job was {found['status']}")
    return found


def _events(path: str, check_interrupted: Callable[[], None]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the events of a job until it ends, or their stream does."""
    heard: queue.Queue[tuple[str, Mapping[str, Any]] | None] = queue.Queue()
    threading.Thread(target=_listen, args=(f"{path}/events", heard), daemon=True).start()
    while True:
        check_interrupted()
        try:
            event = heard.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            continue
        if event is None:
            return
        yield event


def _listen(path: str, heard: "queue.Queue[tuple[str, Mapping[str, Any]] | None]") -> None:
    try:
        with _opened("GET", _url(path), None, "application/json") as answer:
            for line in answer:
                if line.startswith(b"data:"):
                    event = json.loads(line[5:])
                    heard.put((event["type"], event["data"]))
    except (OSError, ValueError, DrawingFailed):
        pass  # the job itself is asked for then
    finally:
        heard.put(None)


def _url(path: str) -> str:
    server = os.environ.get("DIFFUSERVE_SERVER") or "http://127.0.0.1:8000"  # noqa: TID251 (ComfyUI's own)
    if not server.startswith(("http://", "https://")):
        raise DrawingFailed(f"DIFFUSERVE_SERVER={server!r} is not a URL such as http://127.0.0.1:8000")
    return server.rstrip("/") + path


def _opened(method: str, url: str, data: bytes | None, content_type: str) -> Any:
    headers = {"content-type": content_type}
    if key := os.environ.get("DIFFUSERVE_API_KEY"):  # noqa: TID251 (ComfyUI's own)
        headers["authorization"] = f"Bearer {key}"
    request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 (checked by _url)
    try:
        return urllib.request.urlopen(request, timeout=_SECONDS)  # noqa: S310
    except urllib.error.HTTPError as error:
        raise DrawingFailed(_told(error)) from error
    except urllib.error.URLError as error:
        remedy = "start one with `diffuserve serve`, or set DIFFUSERVE_SERVER for ComfyUI"
        raise DrawingFailed(f"no diffuserve server answers at {url}: {error.reason}; {remedy}") from error


def _told(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["detail"])
    except (ValueError, KeyError, TypeError):
        return str(error)
