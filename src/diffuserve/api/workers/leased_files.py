"""Files of leased jobs as workers send and fetch them."""

import asyncio
import base64
import hashlib
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect

from diffuserve.api.config import ApiConfig
from diffuserve.api.http.responses import json_response
from diffuserve.domain.errors import ArtifactNotFound, InvalidParams, UploadMissing
from diffuserve.domain.workers.worker import Completion, StoredFile, UploadUrl
from diffuserve.storage.base import ArtifactStore
from diffuserve.storage.watch import StorageWatch

MAX_CHARACTERS_ON_LOOP = 100_000
"""Characters in base64 that are decoded and hashed on the event loop; more would hold up other requests."""
ANY_TYPE = "application/octet-stream"
BINARY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {ANY_TYPE: {"schema": {"type": "string", "format": "binary"}}},
    }
}


@dataclass(frozen=True)
class LeasedFileStore:
    """The finished-file store, as workers use it for the jobs that they hold."""

    artifacts: ArtifactStore
    storage: StorageWatch
    config: ApiConfig

    async def store(self, request: Request, key: str) -> StoredFile | None:
        """Store a request's body under a key; return `None` if the worker has disconnected meanwhile."""
        try:
            stored = await self.artifacts.put(key, request.stream(), self.config.max_file_bytes)
        except ClientDisconnect:
            return None
        name = PurePosixPath(key).name
        return StoredFile(name=name, size_bytes=stored.size_bytes, sha256=stored.sha256)

    async def stored(self, request: Request, key: str) -> Response:
        """Store a request's body under a key, and respond with what is stored."""
        stored = await self.store(request, key)
        if stored is None:
            return Response(status_code=400)  # which nobody reads
        return json_response(stored, 201)

    async def upload_url(self, key: str) -> Response:
        """Respond with a URL of the bucket that accepts the file by PUT; null if this server stores files.

        Raise `StorageAway` while the store is away, so that the worker waits without trying.
        """
        self.storage.check()
        url = await self.artifacts.upload_url(key, self.config.upload_url_seconds)
        return json_response(UploadUrl(url=url))

    async def content(self, key: str, media_type: str) -> Response:
        """Respond with a file."""
        headers = {"content-length": str(await self.artifacts.size(key))}
        return StreamingResponse(self.artifacts.read(key), headers=headers, media_type=media_type)

    async def check(self, folder: str, name: str, size_bytes: int) -> None:
        """Raise `UploadMissing` unless a file is stored whole."""
        try:
            size = await self.artifacts.size(f"{folder}/{name}")
        except ArtifactNotFound as error:
            raise UploadMissing(f"{name} is not stored; upload it again") from error
        if size != size_bytes:
            raise UploadMissing(f"{name} has {size:,} bytes instead of {size_bytes:,}; upload it again")


async def contents_of(completion: Completion) -> dict[str, bytes]:
    """Return the files that were sent along, as `decode_contents` does; a thread decodes large ones."""
    if sum(map(len, completion.contents.values())) > MAX_CHARACTERS_ON_LOOP:
        return await asyncio.to_thread(decode_contents, completion)
    return decode_contents(completion)


def decode_contents(completion: Completion) -> dict[str, bytes]:
    """Return the files that were sent along. Raise `InvalidParams`, and `UploadMissing` for a damaged one."""
    artifacts = {artifact.name: artifact for artifact in completion.result.artifacts}
    contents = {name: _decoded(name, text) for name, text in completion.contents.items()}
    for name, content in contents.items():
        if name not in artifacts:
            raise InvalidParams(f"contents.{name}", f"{len(content):,} bytes", "is no file of the result")
        artifact = artifacts[name]
        if (len(content), hashlib.sha256(content).hexdigest()) != (artifact.size_bytes, artifact.sha256):
            raise UploadMissing(f"{name} arrived damaged; send it again")
    return contents


def _decoded(name: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise InvalidParams(f"contents.{name}", f"{len(text):,} characters", "is not base64") from error
