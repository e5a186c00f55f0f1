"""A sender of webhooks beside an application under test."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI

from diffuserve.api.outbound.guarded_http import GuardedHttpClient
from diffuserve.api.webhooks.sender import SenderParts, WebhookSender


@asynccontextmanager
async def sending(app: FastAPI, http: GuardedHttpClient | None = None) -> AsyncGenerator[None]:
    """Send the webhooks of an application within the block."""
    services = app.state.services
    http = http or GuardedHttpClient(services.address_policy)
    task = asyncio.create_task(WebhookSender(services.part(SenderParts), http).run())
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await http.close()
