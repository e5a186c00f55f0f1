"""Responses that serve stored files, whole or in part, after RFC 9110."""

import re
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Header, Response
from fastapi.responses import StreamingResponse

from diffuserve.domain.errors import RangeNotSatisfiable
from diffuserve.storage.base import ArtifactStore, content_type_of

_RANGE = re.compile(r"bytes=\s*([0-9]{0,18})-([0-9]{0,18})\s*", re.IGNORECASE)
_BINARY = {"schema": {"type": "string", "format": "binary"}}


@dataclass(frozen=True)
class PartRequest:
    """Headers of a request: the requested part of a file, and the version that the client has."""

    range: str | None = None
    if_range: str | None = None
    if_none_match: str | None = None


async def _part_request(
    range: Annotated[
        str | None, Header(description="One range of bytes, such as `bytes=0-1023`; of several, all is sent.")
    ] = None,
    if_range: Annotated[str | None, Header(description="Send all of it if this is not its `ETag`.")] = None,
    if_none_match: Annotated[str | None, Header(description="`304` if this is its `ETag`.")] = None,
) -> PartRequest:
    return PartRequest(range, if_range, if_none_match)


Part = Annotated[PartRequest, Depends(_part_request)]


@dataclass(frozen=True)
class StoredContent:
    """A file of the store under `key`: the name under which a browser saves it, and its sha256 in hex."""

    key: str
    filename: str
    sha256: str = ""

    @property
    def etag(self) -> str:
        """Return the entity tag, empty for a file whose content is not known."""
        return f'"{self.sha256}"' if self.sha256 else ""


async def serve(store: ArtifactStore, content: StoredContent, wanted: PartRequest) -> Response:
    """Build the response. Raise `ArtifactNotFound` and `RangeNotSatisfiable` before it begins.

    Clients may ask for a single range; for several ranges the whole file is sent, as RFC 9110 allows.
    """
    size = await store.size(content.key)
    headers = _headers(content)
    if _is_known(content.etag, wanted.if_none_match):
        return Response(status_code=304, headers=headers)
    part = _part(content, wanted, size)
    if part is not None:
        headers["content-range"] = f"bytes {part.start}-{part.stop - 1}/{size}"
    headers["content-length"] = str(size if part is None else len(part))
    return StreamingResponse(
        store.read(content.key, part),
        status_code=200 if part is None else 206,
        headers=headers,
        media_type=content_type_of(content.key),
    )


def requested_range(header: str, size: int) -> range | None:
    """Return the byte range that a `Range` header asks for, or `None` for the whole file.

    A header that is malformed, in another unit, or has several ranges is ignored. Raise `RangeNotSatisfiable`
    if the file ends before the range begins.
    """
    match = _RANGE.fullmatch(header)
    if match is None or match[1] == match[2] == "":
        return None
    if not match[1]:
        start, stop = max(size - int(match[2]), 0), size
    else:
        start, stop = int(match[1]), min(int(match[2] or size) + 1, size)
    if match[1] and match[2] and int(match[1]) > int(match[2]):
        return None
    if start >= size:
        raise RangeNotSatisfiable(header, size)
    return range(start, stop)


def file_responses(*content_types: str) -> dict[int | str, dict[str, Any]]:
    """Return OpenAPI's description of the responses of `serve`."""
    content = {content_type: _BINARY for content_type in content_types}
    return {
        200: {"content": content},
        206: {"description": "The range that was asked for.", "content": content},
        304: {"description": "Unchanged since `If-None-Match`."},
        307: {"description": "The file is in a bucket or behind a CDN; its URL needs no key."},
        416: {"description": "`range_not_satisfiable`: the file ends before the range begins."},
    }


def _headers(content: StoredContent) -> dict[str, str]:
    headers = {
        "accept-ranges": "bytes",
        "cache-control": "private, max-age=86400, immutable",
        "content-disposition": f'inline; filename="{content.filename}"',
        "x-content-type-options": "nosniff",
    }
    return headers | ({"etag": content.etag} if content.etag else {})


def _is_known(etag: str, if_none_match: str | None) -> bool:
    tags = [tag.strip().removeprefix("W/") for tag in (if_none_match or "").split(",")]
    return bool(etag) and (etag in tags or "*" in tags)


def _part(content: StoredContent, wanted: PartRequest, size: int) -> range | None:
    """Return the requested part, or the whole file if the client's other parts are of another version."""
    if wanted.range is None or (wanted.if_range is not None and wanted.if_range != content.etag):
        return None
    return requested_range(wanted.range, size)
