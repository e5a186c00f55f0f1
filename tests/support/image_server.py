"""A web server of images over https, as a script says."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from support.http_request import ReceivedRequest, read_request


@dataclass(frozen=True)
class Page:
    """A response. Without `is_whole` nothing follows its first half."""

    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "image/png"})
    status: int = 200
    is_whole: bool = True


@dataclass
class ImageServer:
    """Responds at each path with its page; it closes no connection by itself."""

    pages: dict[str, Page] = field(default_factory=dict)
    received: list[ReceivedRequest] = field(default_factory=list)
    port: int = 0

    def url(self, path: str, host: str = "images.example") -> str:
        return f"https://{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await read_request(reader):
                self.received.append(request)
                page = self.pages[request.path]
                headers = {"content-length": str(len(page.body)), **page.headers}
                lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
                writer.write(f"HTTP/1.1 {page.status} Scripted\r\n{lines}\r\n".encode())
                writer.write(page.body if page.is_whole else page.body[: len(page.body) // 2])
                await writer.drain()
                if not page.is_whole:
                    await asyncio.sleep(3_600)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client disconnected
        finally:
            writer.close()


@asynccontextmanager
async def serving_images(context: ssl.SSLContext) -> AsyncGenerator[ImageServer]:
    """Run a server on a free port of this machine."""
    images = ImageServer()
    server = await asyncio.start_server(images.serve, "127.0.0.1", 0, ssl=context)
    images.port = server.sockets[0].getsockname()[1]
    yield images
    server.close()
