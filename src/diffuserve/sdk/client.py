"""The client for programs that run no event loop: every method of the asynchronous one, waited for."""

from types import TracebackType
from typing import Self

import httpx

from diffuserve.client.batches import BatchClient
from diffuserve.client.files import FileClient
from diffuserve.client.webhooks import WebhookClient
from diffuserve.sdk.async_client import PATIENCE_SECONDS, AsyncClient
from diffuserve.sdk.blocking import BlockingClient, LoopThread, blocking, iterating


class BlockingFiles(BlockingClient):
    """Uploads images and lists them."""

    upload = blocking(FileClient.upload)
    get = blocking(FileClient.get)
    page = blocking(FileClient.page)
    delete = blocking(FileClient.delete)


class BlockingBatches(BlockingClient):
    """Submits batches, follows them and reads their results."""

    submit = blocking(BatchClient.submit)
    submit_lines = blocking(BatchClient.submit_lines)
    submit_json = blocking(BatchClient.submit_json)
    get = blocking(BatchClient.get)
    page = blocking(BatchClient.page)
    wait = blocking(BatchClient.wait)
    cancel = blocking(BatchClient.cancel)
    results = iterating(BatchClient.results)
    result_lines = iterating(BatchClient.result_lines)


class BlockingWebhooks(BlockingClient):
    """Reads webhooks and redelivers messages."""

    endpoints = blocking(WebhookClient.endpoints)
    deliveries = blocking(WebhookClient.deliveries)
    redeliver = blocking(WebhookClient.redeliver)
    enable = blocking(WebhookClient.enable)
    secret = blocking(WebhookClient.secret)
    rotate_secret = blocking(WebhookClient.rotate_secret)


class Client(BlockingClient):
    """Submits jobs to a server, follows them and fetches their images; a context manager.

    Several threads may use it, also one that runs an event loop. `AsyncClient` says what each method does.
    """

    generate = blocking(AsyncClient.generate)
    submit = blocking(AsyncClient.submit)
    estimate = blocking(AsyncClient.estimate)
    subscribe = iterating(AsyncClient.subscribe)
    stream = iterating(AsyncClient.stream)
    wait = blocking(AsyncClient.wait)
    get = blocking(AsyncClient.get)
    list_jobs = blocking(AsyncClient.list_jobs)
    find_jobs = blocking(AsyncClient.find_jobs)
    cancel = blocking(AsyncClient.cancel)
    delete = blocking(AsyncClient.delete)
    requeue = blocking(AsyncClient.requeue)
    fetch = blocking(AsyncClient.fetch)
    download = blocking(AsyncClient.download)
    models = blocking(AsyncClient.models)
    usage = blocking(AsyncClient.usage)
    workers = blocking(AsyncClient.workers)
    drain_worker = blocking(AsyncClient.drain_worker)
    pool_size = blocking(AsyncClient.pool_size)
    operations = blocking(AsyncClient.operations)
    server_time = blocking(AsyncClient.server_time)
    check_ready = blocking(AsyncClient.check_ready)
    is_ready = blocking(AsyncClient.is_ready)

    def __init__(
        self,
        server: str | None = None,
        api_key: str | None = None,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        client = AsyncClient(server, api_key, patience_seconds=patience_seconds, transport=transport)
        super().__init__(LoopThread(), client)
        self.server = client.server
        self.files = BlockingFiles(self._loop, client.files)
        self.batches = BlockingBatches(self._loop, client.batches)
        self.webhooks = BlockingWebhooks(self._loop, client.webhooks)

    def close(self) -> None:
        """Close every connection; closing again changes nothing."""
        self._loop.close(self._client.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
