"""Client for the uploaded images of a server."""

import io
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from diffuserve.client.codec import decode
from diffuserve.client.http import HttpTransport, RequestOptions
from diffuserve.client.ids import checked_id
from diffuserve.client.local_images import LocalImage, local_images, with_ids
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.resources.file import FilePage, FileResource
from diffuserve.storage.base import content_type_of

_CHUNK = 256 * 1024
_READING_SECONDS = 120.0  # the server reads and judges an image before it responds
_IMAGE = "image/png"  # for file names without a known suffix; the server checks the content


class FileClient:
    """Uploads images and lists them. Every method may raise `ServerUnavailable`."""

    def __init__(self, http: HttpTransport) -> None:
        self._http = http

    async def upload(
        self, image: LocalImage | str, on_sent: Callable[[int], None] = lambda _bytes: None
    ) -> FileResource:
        """Upload an image; the same one again is the same file. Raise `InvalidParams` or `TooLarge`.

        Text is a path. `on_sent` is called with the bytes of a path that are on their way so far, which a
        retry sends anew.
        """
        image = Path(image) if isinstance(image, str) else image
        path = image if isinstance(image, Path) else Path("image")
        if not isinstance(image, Path | bytes):
            image = _whole(image)
        content_type = content_type_of(path.name)
        headers = {"content-type": content_type if content_type.startswith("image/") else _IMAGE}
        if isinstance(image, Path):
            headers["content-length"] = str(image.stat().st_size)
        options = RequestOptions(
            content=_Content(image, on_sent) if isinstance(image, Path) else image,
            headers=headers,
            params={"filename": path.name},
            wait_seconds=_READING_SECONDS,
        )
        return decode(FileResource, (await self._http.request("POST", "/v1/files", options)).content)

    async def get(self, file_id: str) -> FileResource:
        """Return what is known of a file. Raise `FileNotKnown`."""
        return decode(FileResource, (await self._http.request("GET", self._path(file_id))).content)

    async def page(self, limit: int) -> FilePage:
        """Return the newest files."""
        options = RequestOptions(params={"limit": limit})
        return decode(FilePage, (await self._http.request("GET", "/v1/files", options)).content)

    async def delete(self, file_id: str) -> None:
        """Delete a file. Raise `FileNotKnown`, and `FileInUse` while a job needs it."""
        await self._http.request("DELETE", self._path(file_id))

    @staticmethod
    def _path(file_id: str) -> str:
        return f"/v1/files/{checked_id(file_id)}"


async def with_uploads(files: FileClient, fields: Any) -> Any:
    """Return fields with each image that the program has itself uploaded once, and named by its id."""
    ids = {image: (await files.upload(image)).id for image in dict.fromkeys(local_images(fields))}
    return with_ids(fields, ids)


def _whole(file: BinaryIO | io.TextIOBase) -> bytes:
    """Return the content of an open file from its beginning, wherever the program left it."""
    if isinstance(file, io.TextIOBase):
        raise InvalidParams("image", file, 'is open as text; open it with the mode "rb"')
    if file.seekable():
        file.seek(0)
    return file.read()


@dataclass(frozen=True)
class _Content:
    """The content of a file, which can be sent again: each iteration begins anew."""

    path: Path
    on_sent: Callable[[int], None]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        sent = 0
        with self.path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk
                sent += len(chunk)
                self.on_sent(sent)
