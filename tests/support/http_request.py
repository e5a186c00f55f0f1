"""A parser of HTTP requests for test servers, whose responses no real server would send."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ReceivedRequest:
    """A request as received. Header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)


async def read_request(reader: asyncio.StreamReader) -> ReceivedRequest | None:
    """Return the next request of a connection; `None` at its end."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    method, path, _ = first.split(" ")
    return ReceivedRequest(method, path, headers, body)
