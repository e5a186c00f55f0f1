"""HEAD requests: the headers with which GET would respond."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send


async def send_headers_alone(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Run a HEAD request as GET until its headers are sent.

    Its body is never produced: no file is read, and a stream of events ends before its first one.
    """
    loop = asyncio.get_running_loop()
    is_sent = loop.create_future()

    async def send_headers(message: Message) -> None:
        await send(message)
        if message["type"] == "http.response.start":
            await send({"type": "http.response.body", "body": b""})
            is_sent.set_result(None)
            await loop.create_future()  # wait until canceled

    headers = [(name, value) for name, value in scope["headers"] if name != b"range"]  # only GET has ranges
    as_get = {**scope, "method": "GET", "headers": headers}
    working = asyncio.ensure_future(app(as_get, receive, send_headers))
    try:
        await asyncio.wait({working, is_sent}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        scope["route"] = as_get.get("route")
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
