"""Files of leased jobs as workers send and fetch them."""

from pathlib import PurePosixPath
from typing import Any

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect

from diffuserve.api.services import Services
from diffuserve.domain.errors import ArtifactNotFound, UploadMissing
from diffuserve.domain.worker import StoredFile
from diffuserve.storage.base import ArtifactStore

ANY_TYPE = "application/octet-stream"
BINARY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {ANY_TYPE: {"schema": {"type": "string", "format": "binary"}}},
    }
}


async def store_body(services: Services, request: Request, key: str) -> StoredFile | None:
    """Store a request's body under a key; return `None` if the worker has disconnected meanwhile."""
    try:
        stored = await services.artifacts.put(key, request.stream(), services.config.max_file_bytes)
    except ClientDisconnect:
        return None
    name = PurePosixPath(key).name
    return StoredFile(name=name, size_bytes=stored.size_bytes, sha256=stored.sha256)


async def content_of(store: ArtifactStore, key: str, media_type: str) -> Response:
    headers = {"content-length": str(await store.size(key))}
    return StreamingResponse(store.read(key), headers=headers, media_type=media_type)


async def check_file(store: ArtifactStore, folder: str, name: str, size_bytes: int) -> None:
    try:
        size = await store.size(f"{folder}/{name}")
    except ArtifactNotFound as error:
        raise UploadMissing(f"{name} is not stored; upload it again") from error
    if size != size_bytes:
        raise UploadMissing(f"{name} has {size:,} bytes instead of {size_bytes:,}; upload it again")
