"""The modules, styles and images of the page, as they are sent: read and compressed once.

Their paths carry a hash of all of them, so a browser keeps them for good, and a page that is open during an
upgrade never gets a module of another version: it gets none, and offers to load again.
"""

import gzip
import hashlib
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.datastructures import Headers
from starlette.responses import Response

_FOLDER = files("diffuserve.web") / "static"
_INDEX = "index.html"
_TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
_HEADERS = {
    "cache-control": "public, max-age=31536000, immutable",
    "cross-origin-resource-policy": "same-origin",
    "vary": "accept-encoding",
    "x-content-type-options": "nosniff",
}
# A static import or export of another module; `import("…")` loads one when it is needed.
_IMPORT = re.compile(r'^(?:import|export)\b[^;"]*?"(\.[^"]+)";', re.MULTILINE)


@dataclass(frozen=True)
class Asset:
    """A file of the page."""

    content: bytes
    content_type: str
    compressed: bytes
    tag: str

    @classmethod
    def of(cls, name: str, content: bytes) -> "Asset":
        """Return the file with this content."""
        tag = hashlib.sha256(content).hexdigest()[:32]
        content_type = _TYPES[name.rpartition(".")[2]]
        return cls(content, content_type, gzip.compress(content, 9, mtime=0), f'W/"{tag}"')

    def response(self, headers: Headers) -> Response:
        """Return the file for a request with these headers; nothing of it if the browser has it."""
        own = _HEADERS | {"etag": self.tag}
        if self.tag in headers.get("if-none-match", ""):
            return Response(status_code=304, headers=own)
        if not _takes_gzip(headers.get("accept-encoding", "")):
            return Response(self.content, headers=own, media_type=self.content_type)
        own["content-encoding"] = "gzip"
        return Response(self.compressed, headers=own, media_type=self.content_type)


@dataclass(frozen=True)
class Assets:
    """All files of one version of the page, by their paths."""

    version: str
    index: str
    files: Mapping[str, Asset]

    def styles(self) -> Sequence[str]:
        """Return the paths of the styles, those that all views share first."""
        names = sorted(
            name for name in self.files if name.endswith(".css") and not name.startswith("vendor/")
        )
        return sorted(names, key=lambda name: (name != "styles.css", name))

    def modules(self, *entries: str) -> Sequence[str]:
        """Return the paths of these modules and of all that they import."""
        found: dict[str, None] = {}
        waiting = list(entries)
        while waiting:
            name = waiting.pop(0)
            if name not in found:
                found[name] = None
                waiting.extend(self._imports(name))
        return list(found)

    def _imports(self, name: str) -> Iterator[str]:
        folder = posixpath.dirname(name)
        for path in _IMPORT.findall(self.files[name].content.decode()):
            yield posixpath.normpath(posixpath.join(folder, path))


@cache
def load_assets() -> Assets:
    """Read the files of the page, when the first browser asks for them."""
    contents = dict(sorted(_walk(_FOLDER, "")))
    index = contents.pop(_INDEX)
    digest = hashlib.sha256(index)
    for name, content in contents.items():
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    assets = {name: Asset.of(name, content) for name, content in contents.items()}
    return Assets(digest.hexdigest()[:12], index.decode(), assets)


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for item in folder.iterdir():
        if item.is_dir():
            yield from _walk(item, f"{prefix}{item.name}/")
        elif f"{prefix}{item.name}" == _INDEX or item.name.rpartition(".")[2] in _TYPES:
            yield f"{prefix}{item.name}", item.read_bytes()


def _takes_gzip(accepted: str) -> bool:
    """Return whether an `Accept-Encoding` header names gzip, and not to refuse it."""
    codings = (coding.replace(" ", "").lower().partition(";") for coding in accepted.split(","))
    return any(name == "gzip" and not re.fullmatch(r"q=0(\.0*)?", weight) for name, _, weight in codings)
