"""Uploads of images, which are sent again whole after a failure."""

from pathlib import Path

import httpx
import orjson
import pytest

from diffuserve.domain.errors import FileInUse, FileNotKnown, ImageBlocked, TooLarge
from diffuserve.sdk.async_client import AsyncClient
from support.virtual_time import in_virtual_time

CONTENT = b"an image" * 100_000
FILE = {
    "id": "file-1",
    "filename": "a.png",
    "content_type": "image/png",
    "bytes": 9,
    "width": 4,
    "height": 2,
    "sha256": "ab",
    "verdict": None,
    "created_at": 1767225600,
    "expires_at": 1767312000,
}


class Server:
    """Gives these responses in turn, and keeps what it was sent."""

    def __init__(self, *responses: httpx.Response) -> None:
        self.responses = iter(responses)
        self.bodies: list[bytes] = []
        self.requests: list[httpx.Request] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        assert isinstance(request.stream, httpx.AsyncByteStream)
        self.bodies.append(b"".join([chunk async for chunk in request.stream]))
        return next(self.responses)

    @property
    def client(self) -> AsyncClient:
        return AsyncClient("http://server", transport=_Streaming(self))


class _Streaming(httpx.AsyncBaseTransport):
    """Hands requests on as they are sent; `httpx.MockTransport` reads their bodies, once for all tries."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._server(request)


def problem(status: int, code: str) -> httpx.Response:
    return httpx.Response(status, json={"code": code, "detail": "as said"})


@in_virtual_time
async def test_an_upload_is_sent_again_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "a b.jpg"
    path.write_bytes(CONTENT)
    server = Server(httpx.Response(503), httpx.Response(201, content=orjson.dumps(FILE)))
    sent: list[int] = []
    file = await server.client.files.upload(path, sent.append)
    assert (file.id, file.filename) == ("file-1", "a.png")
    assert server.bodies == [CONTENT, CONTENT]
    assert sent[-1] == len(CONTENT)
    assert sent == [*sent[: len(sent) // 2]] * 2, "its progress begins anew as well"
    for request in server.requests:
        assert request.headers["content-type"] == "image/jpeg"
        assert request.headers["content-length"] == str(len(CONTENT))
        assert "transfer-encoding" not in request.headers
        assert request.url.params["filename"] == "a b.jpg"


async def test_a_name_that_tells_no_format_is_sent_as_an_image(tmp_path: Path) -> None:
    path = tmp_path / "photo"
    path.write_bytes(CONTENT)
    server = Server(httpx.Response(201, content=orjson.dumps(FILE)))
    await server.client.files.upload(str(path))
    assert server.requests[0].headers["content-type"] == "image/png"


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (404, "file_not_found", FileNotKnown),
        (409, "file_in_use", FileInUse),
        (413, "too_large", TooLarge),
        (422, "image_blocked", ImageBlocked),
    ],
)
async def test_refusals_keep_their_meaning(status: int, code: str, error: type[Exception]) -> None:
    with pytest.raises(error, match="as said"):
        await Server(problem(status, code)).client.files.delete("file-1")
