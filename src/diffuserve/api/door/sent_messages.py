"""WebSockets that send, and read nothing."""

import asyncio
from collections.abc import AsyncGenerator

from starlette.websockets import WebSocket, WebSocketDisconnect


async def send_all(websocket: WebSocket, messages: AsyncGenerator[str | bytes]) -> None:
    """Send every message, until they end or the client disconnects."""
    await websocket.accept()
    sending = asyncio.create_task(_send(websocket, messages))
    disconnecting = asyncio.create_task(_wait_for_disconnect(websocket))
    try:
        await asyncio.wait({sending, disconnecting}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            sending.result()
            await websocket.close()
    finally:
        sending.cancel()
        disconnecting.cancel()
        await asyncio.gather(sending, disconnecting, return_exceptions=True)


async def _send(websocket: WebSocket, messages: AsyncGenerator[str | bytes]) -> None:
    try:
        async for message in messages:
            if isinstance(message, str):
                await websocket.send_text(message)
            else:
                await websocket.send_bytes(message)
    except WebSocketDisconnect:
        return


async def _wait_for_disconnect(websocket: WebSocket) -> None:
    """Return when the client has disconnected; messages that it sends are ignored."""
    while (await websocket.receive())["type"] != "websocket.disconnect":
        pass
