"""Webhooks, from a job's end to a receiver that verifies them, fails, hangs and redirects."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from openai import AsyncOpenAI, BadRequestError, InvalidWebhookSignatureError
from standardwebhooks import Webhook, WebhookVerificationError

from diffuserve.api.config import ApiConfig
from diffuserve.api.outbound.address_policy import AddressPolicy
from diffuserve.api.outbound.guarded_http import GuardedHttpClient, Resolve
from diffuserve.domain.jobs.job import VIDEO_GENERATE
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.store import JobStore
from support.certificates import certified
from support.clips import CLIPS, MP4, complete_clip
from support.file_batches import create, line, until, working
from support.hand_worker import PNG, HandWorker
from support.http_request import ReceivedRequest
from support.waiting import HANG_SECONDS
from support.webhook_receiver import WebhookReceiver, receiving
from support.webhook_sender import sending

LOOPBACK = ("127.0.0.0/8",)
ANY_PORT = ("1-65535",)
_FAST_RETRIES = (0.05, 0.05, 0.05)


@pytest.fixture
def store_config() -> StoreConfig:
    return StoreConfig(webhook_retry_seconds=_FAST_RETRIES)


@pytest.fixture
def timeout_seconds() -> float:
    """Return how long a receiver may take: longer than any test waits, unless a test sets it."""
    return 2 * HANG_SECONDS


@pytest.fixture
def app(make_app: Callable[[ApiConfig], FastAPI], timeout_seconds: float) -> FastAPI:
    return make_app(
        ApiConfig(
            poll_seconds=0.02,
            webhook_allowed_networks=LOOPBACK,
            webhook_allowed_ports=ANY_PORT,
            webhook_timeout_seconds=timeout_seconds,
        )
    )


@pytest.fixture
async def receiver() -> AsyncGenerator[WebhookReceiver]:
    async with receiving() as receiver:
        yield receiver


@pytest.fixture
async def sender(app: FastAPI) -> AsyncGenerator[None]:
    async with sending(app):
        yield


async def submit(http: httpx.AsyncClient, url: str, **webhook: Any) -> dict[str, Any]:
    body = {"input": {"prompt": "a cat"}, "webhook": {"url": url} | webhook}
    response = await http.post("/v1/jobs", json=body)
    assert response.status_code == 202, response.text
    job: dict[str, Any] = response.json()
    return job


async def run_job(http: httpx.AsyncClient, worker: HandWorker, url: str) -> dict[str, Any]:
    job = await submit(http, url)
    [lease] = await worker.claim()
    await worker.complete(lease)
    return job


async def verified(http: httpx.AsyncClient, received: ReceivedRequest) -> dict[str, Any]:
    """Verify a message by the library of Standard Webhooks, and return it."""
    secret = (await http.get("/v1/webhooks/secret")).json()["secret"]
    message: dict[str, Any] = Webhook(secret).verify(received.body, dict(received.headers))
    return message


async def deliveries(http: httpx.AsyncClient) -> list[dict[str, Any]]:
    [endpoint] = (await http.get("/v1/webhooks")).json()["data"]
    found: list[dict[str, Any]] = (await http.get(f"/v1/webhooks/{endpoint['id']}/deliveries")).json()["data"]
    return found


async def wait_for_status(http: httpx.AsyncClient, status: str) -> dict[str, Any]:
    """Wait until the only delivery has this status, and return it."""
    async with asyncio.timeout(HANG_SECONDS):
        while True:
            [delivery] = await deliveries(http)
            if delivery["status"] == status:
                return delivery
            await asyncio.sleep(0.01)


@pytest.mark.usefixtures("sender")
async def test_a_webhook_carries_a_url_that_opens_the_image(
    http: httpx.AsyncClient, worker: HandWorker, receiver: WebhookReceiver
) -> None:
    job = await run_job(http, worker, receiver.url)
    [received] = await receiver.wait_for(1)
    message = await verified(http, received)
    assert message["type"] == "job.succeeded"
    assert message["data"]["id"] == job["id"]
    assert received.headers["content-type"] == "application/json"
    url = message["data"]["result"]["artifacts"][0]["url"]
    assert (await http.get(url)).content == PNG
    delivery = await wait_for_status(http, "delivered")
    assert (delivery["id"], delivery["num_attempts"]) == (received.headers["webhook-id"], 1)


@pytest.mark.usefixtures("sender")
async def test_a_webhook_tells_the_length_of_a_clip_and_where_it_is(
    http: httpx.AsyncClient, receiver: WebhookReceiver
) -> None:
    worker = await HandWorker.register(http, [CLIPS])
    clip = {"prompt": "a ball", "num_frames": 17, "fps": 8}
    body = {"kind": VIDEO_GENERATE, "model": "clips", "input": clip, "webhook": {"url": receiver.url}}
    (await http.post("/v1/jobs", json=body)).raise_for_status()
    [lease] = await worker.claim()
    await complete_clip(worker, lease)
    [received] = await receiver.wait_for(1)
    data = (await verified(http, received))["data"]
    assert data["kind"] == VIDEO_GENERATE
    files = {artifact["role"]: artifact for artifact in data["result"]["artifacts"]}
    video = files.pop("video")
    assert (video["num_frames"], video["fps"], video["content_type"]) == (17, 8, "video/mp4")
    assert (await http.get(video["url"])).content == MP4
    assert files.keys() == {"poster", "sprites"}


@pytest.mark.usefixtures("sender")
async def test_a_forged_message_fails_verification(
    http: httpx.AsyncClient, worker: HandWorker, receiver: WebhookReceiver
) -> None:
    await run_job(http, worker, receiver.url)
    [received] = await receiver.wait_for(1)
    forged = ReceivedRequest("POST", "/", received.headers, received.body.replace(b"succeeded", b"failed"))
    with pytest.raises(WebhookVerificationError):
        await verified(http, forged)


@pytest.mark.usefixtures("sender")
async def test_after_a_rotation_both_secrets_verify(
    http: httpx.AsyncClient, worker: HandWorker, receiver: WebhookReceiver
) -> None:
    old = (await http.get("/v1/webhooks/secret")).json()["secret"]
    new = (await http.post("/v1/webhooks/secret/rotate")).json()["secret"]
    assert new != old
    await run_job(http, worker, receiver.url)
    [received] = await receiver.wait_for(1)
    for secret in (old, new):
        assert Webhook(secret).verify(received.body, dict(received.headers))["type"] == "job.succeeded"


@pytest.mark.usefixtures("sender")
@pytest.mark.parametrize("failure", [500, 302, 0], ids=["error", "redirect", "disconnect"])
async def test_a_failed_delivery_is_retried_with_the_same_id(
    http: httpx.AsyncClient, worker: HandWorker, receiver: WebhookReceiver, failure: int
) -> None:
    receiver.script = deque([failure])
    receiver.redirect_to = receiver.url + "/other"
    await run_job(http, worker, receiver.url)
    first, second = await receiver.wait_for(2)
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert second.path == "/hook", "a redirect was followed"
    await verified(http, second)
    assert (await wait_for_status(http, "delivered"))["num_attempts"] == 2


@pytest.mark.usefixtures("sender")
@pytest.mark.parametrize("timeout_seconds", [1.0])
async def test_a_delivery_that_times_out_is_retried_with_the_same_id(
    http: httpx.AsyncClient, worker: HandWorker, receiver: WebhookReceiver
) -> None:
    receiver.script = deque([None])
    await run_job(http, worker, receiver.url)
    first, second = (await receiver.wait_for(2))[:2]
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert (await wait_for_status(http, "delivered"))["num_attempts"] >= 2


@pytest.mark.usefixtures("sender")
async def test_a_delivery_fails_after_the_last_retry_and_can_be_redelivered(
    http: httpx.AsyncClient, worker: HandWorker, receiver: WebhookReceiver
) -> None:
    receiver.script = deque([503] * (1 + len(_FAST_RETRIES)))
    await run_job(http, worker, receiver.url)
    delivery = await wait_for_status(http, "failed")
    assert (delivery["num_attempts"], delivery["last_status"]) == (4, 503)
    assert delivery["last_error"] == "responded with 503"

    [endpoint] = (await http.get("/v1/webhooks")).json()["data"]
    again = await http.post(f"/v1/webhooks/{endpoint['id']}/deliveries/{delivery['id']}/redeliver")
    assert again.status_code == 202
    assert (await receiver.wait_for(5))[-1].headers["webhook-id"] == delivery["id"]
    await wait_for_status(http, "delivered")


@pytest.mark.usefixtures("sender")
async def test_a_410_response_disables_the_endpoint(
    http: httpx.AsyncClient, worker: HandWorker, receiver: WebhookReceiver
) -> None:
    receiver.script = deque([410])
    await run_job(http, worker, receiver.url)
    await wait_for_status(http, "failed")
    [endpoint] = (await http.get("/v1/webhooks")).json()["data"]
    assert endpoint["is_disabled"]
    await run_job(http, worker, receiver.url)
    await asyncio.sleep(0.2)
    assert len(receiver.received) == 1

    enabled = await http.post(f"/v1/webhooks/{endpoint['id']}/enable")
    assert not enabled.json()["is_disabled"]
    await run_job(http, worker, receiver.url)
    await receiver.wait_for(2)


@pytest.mark.usefixtures("sender")
async def test_a_hanging_receiver_does_not_delay_other_endpoints(
    http: httpx.AsyncClient, worker: HandWorker, receiver: WebhookReceiver
) -> None:
    async with receiving() as hanging:  # for longer than this test waits
        hanging.script = deque([None] * 100)
        for _ in range(20):
            await http.post(f"/v1/jobs/{(await submit(http, hanging.url))['id']}/cancel")
        await hanging.wait_for(1)
        await run_job(http, worker, receiver.url)
        await receiver.wait_for(1)


async def test_a_new_sender_delivers_pending_messages(
    app: FastAPI, http: httpx.AsyncClient, worker: HandWorker, receiver: WebhookReceiver
) -> None:
    job = await run_job(http, worker, receiver.url)
    async with sending(app):
        [received] = await receiver.wait_for(1)
    assert (await verified(http, received))["data"]["id"] == job["id"]


async def test_the_message_of_a_deleted_job_has_its_id_and_status(
    app: FastAPI, http: httpx.AsyncClient, store: JobStore, worker: HandWorker, receiver: WebhookReceiver
) -> None:
    job = await run_job(http, worker, receiver.url)
    await http.delete(f"/v1/jobs/{job['id']}")
    async with sending(app):
        [received] = await receiver.wait_for(1)
    assert (await verified(http, received))["data"] == {"id": job["id"], "status": "succeeded"}


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://169.254.169.254/latest/meta-data", "not lead to a public address"),
        ("http://[::1]/", "not lead to a public address"),
        ("http://[64:ff9b:1::7f00:1]/", "not lead to a public address"),
        ("http://[::ffff:0:127.0.0.1]/", "not lead to a public address"),
        ("https://example.com:22/", "port 22 is not allowed; use 80, 443"),
        ("https://example.com:0/", "port 0 is not allowed"),
        ("http://8.8.8.8:6379/", "port 6379 is not allowed"),
        ("http://localhost/h", "not lead to a public address"),
        ("http://127.0.0.1:9999/h", "DIFFUSERVE_WEBHOOK_ALLOWED_NETWORKS"),
        ("http://10.1.2.3/", "not lead to a public address"),
        ("ftp://example.com/", "must be a URL"),
        ("https://user:secret@example.com/", "must not contain user names"),
        ("https://", "must be a URL"),
        ("nonsense", "must be a URL"),
        ("https://example.com:port/", "must be a URL"),
    ],
)
async def test_invalid_webhook_urls_are_rejected_at_submission(
    make_app: Callable[[ApiConfig], FastAPI], worker: HandWorker, url: str, message: str
) -> None:
    transport = httpx.ASGITransport(make_app(ApiConfig()))
    async with httpx.AsyncClient(transport=transport, base_url="http://api.test") as http:
        body = {"input": {"prompt": "a cat"}, "webhook": {"url": url}}
        response = await http.post("/v1/jobs", json=body)
    assert response.status_code == 422
    assert response.json()["errors"][0]["field"] == "webhook.url"
    assert message in response.json()["detail"]


async def test_unknown_webhook_events_are_rejected(http: httpx.AsyncClient, worker: HandWorker) -> None:
    webhook = {"url": "https://hooks.example/", "events": ["job.exploded"]}
    response = await http.post("/v1/jobs", json={"input": {"prompt": "a cat"}, "webhook": webhook})
    assert response.status_code == 422
    assert "job.succeeded" in response.text


async def test_a_name_that_resolves_to_a_private_address_receives_nothing(
    make_app: Callable[[ApiConfig], FastAPI], worker: HandWorker, receiver: WebhookReceiver
) -> None:
    """Resolve the name to a private address only when the request is sent."""
    app = make_app(ApiConfig(poll_seconds=0.02, webhook_allowed_ports=ANY_PORT))
    guarded = GuardedHttpClient(app.state.services.address_policy, resolve=always("127.0.0.1"))
    transport = httpx.ASGITransport(app)
    async with (
        httpx.AsyncClient(transport=transport, base_url="http://api.test") as http,
        sending(app, guarded),
    ):
        await run_job(http, worker, f"http://harmless.example:{receiver.port}/hook")
        delivery = await wait_for_status(http, "failed")
    assert delivery["last_error"].startswith("harmless.example does not lead to a public address; ")
    assert receiver.received == []


async def test_a_port_that_is_not_allowed_any_more_receives_nothing(
    app: FastAPI,
    make_app: Callable[[ApiConfig], FastAPI],
    http: httpx.AsyncClient,
    worker: HandWorker,
    receiver: WebhookReceiver,
) -> None:
    await run_job(http, worker, receiver.url)
    strict = make_app(ApiConfig(poll_seconds=0.02, webhook_allowed_networks=LOOPBACK))
    async with sending(strict):
        delivery = await wait_for_status(http, "failed")
    assert delivery["last_error"] == AddressPolicy().port_refusal(receiver.port)
    assert receiver.received == []


async def test_a_name_with_a_private_address_among_several_is_rejected(receiver: WebhookReceiver) -> None:
    guarded = GuardedHttpClient(AddressPolicy((), ANY_PORT), resolve=always("93.184.215.14", "127.0.0.1"))
    with pytest.raises(ConnectionError, match="does not lead to a public address"):
        await guarded.post(f"http://two.example:{receiver.port}/", {}, b"", 5.0)
    await guarded.close()


async def test_tls_verifies_the_name_although_the_address_is_pinned(tmp_path: Path) -> None:
    """Connect to a pinned address, and verify the certificate against the name."""
    server_side, client_side = certified("hooks.example", tmp_path)
    policy = AddressPolicy(LOOPBACK, ANY_PORT)
    guarded = GuardedHttpClient(policy, resolve=always("127.0.0.1"), ssl_context=client_side)
    async with receiving(server_side) as receiver:
        assert await guarded.post(f"https://hooks.example:{receiver.port}/", {}, b"{}", 5.0) == 204
        assert receiver.received[0].headers["host"] == f"hooks.example:{receiver.port}"
        with pytest.raises(Exception, match="CERTIFICATE_VERIFY_FAILED"):
            await guarded.post(f"https://other.example:{receiver.port}/", {}, b"{}", 5.0)
    await guarded.close()


async def test_webhooks_are_listed_by_page(http: httpx.AsyncClient, worker: HandWorker) -> None:
    urls = [f"https://h{number}.example/" for number in range(3)]
    for url in urls:
        await http.post(f"/v1/jobs/{(await submit(http, url))['id']}/cancel")
    first = (await http.get("/v1/webhooks", params={"limit": 2})).json()
    assert (len(first["data"]), first["has_more"]) == (2, True)
    rest = (await http.get("/v1/webhooks", params={"limit": 2, "after": first["next"]})).json()
    assert (len(rest["data"]), rest["has_more"], rest["next"]) == (1, False, None)
    assert sorted(endpoint["url"] for endpoint in first["data"] + rest["data"]) == urls


async def test_attempts_and_backlog_are_measured(
    app: FastAPI, http: httpx.AsyncClient, worker: HandWorker, receiver: WebhookReceiver
) -> None:
    await run_job(http, worker, receiver.url)
    assert "diffusion_webhook_backlog 1.0" in (await http.get("/metrics")).text
    async with sending(app):
        await wait_for_status(http, "delivered")
    text = (await http.get("/metrics")).text
    assert "diffusion_webhook_backlog 0.0" in text
    assert 'diffusion_webhook_attempts_total{outcome="delivered"} 1.0' in text


def always(*addresses: str) -> Resolve:
    async def resolve(_host: str, _port: int) -> list[str]:
        return list(addresses)

    return resolve


@pytest.mark.usefixtures("sender")
@pytest.mark.parametrize(("ending", "event"), [("complete", "video.completed"), ("fail", "video.failed")])
async def test_openais_client_reads_the_events_of_clips(
    http: httpx.AsyncClient, receiver: WebhookReceiver, ending: str, event: str
) -> None:
    worker = await HandWorker.register(http, [CLIPS])
    video = (await http.post("/v1/videos", json={"prompt": "a ball", "webhook_url": receiver.url})).json()
    [lease] = await worker.claim()
    await (complete_clip(worker, lease) if ending == "complete" else worker.fail(lease))
    [received] = await receiver.wait_for(1)
    secret = (await http.get("/v1/webhooks/secret")).json()["secret"]
    client = AsyncOpenAI(api_key="any", webhook_secret=secret)
    read = client.webhooks.unwrap(received.body, dict(received.headers))
    assert (read.type, read.data.id, read.object) == (event, video["id"], "event")  # type: ignore[union-attr]
    assert (read.id, read.created_at > 0) == (received.headers["webhook-id"], True)
    with pytest.raises(InvalidWebhookSignatureError):
        client.webhooks.unwrap(received.body + b" ", dict(received.headers))


@pytest.mark.usefixtures("sender", "worker")
async def test_openais_client_verifies_and_reads_the_events_of_jobs_too(
    http: httpx.AsyncClient, receiver: WebhookReceiver
) -> None:
    body = {"input": {"prompt": "a star"}, "webhook": {"url": receiver.url}}
    job = (await http.post("/v1/jobs", json=body)).raise_for_status().json()
    await http.post(f"/v1/jobs/{job['id']}/cancel")
    [received] = await receiver.wait_for(1)
    secret = (await http.get("/v1/webhooks/secret")).json()["secret"]
    client = AsyncOpenAI(api_key="any", webhook_secret=secret)
    read: Any = client.webhooks.unwrap(received.body, dict(received.headers))
    assert (read.type, read.data.id, read.data.status) == ("job.canceled", job["id"], "canceled")


@pytest.mark.usefixtures("sender")
async def test_openais_client_reads_the_events_of_batches_from_files(
    app: FastAPI, client: AsyncOpenAI, http: httpx.AsyncClient, receiver: WebhookReceiver
) -> None:
    hook: dict[str, Any] = {"extra_body": {"webhook_url": receiver.url}}
    async with working(app):
        failed = await create(client, [b"{"], **hook)
        await until(client, failed, "failed")
        cancelled = await create(client, [line("a")], **hook)
        await client.batches.cancel(cancelled.id)
        received = await receiver.wait_for(2)
    secret = (await http.get("/v1/webhooks/secret")).json()["secret"]
    read: list[Any] = [
        client.webhooks.unwrap(message.body, dict(message.headers), secret=secret) for message in received
    ]
    events = {(event.type, event.data.id) for event in read}
    assert events == {("batch.failed", failed.id), ("batch.cancelled", cancelled.id)}
    forbidden = {"extra_body": {"webhook_url": "http://10.0.0.1/"}}
    with pytest.raises(BadRequestError, match="webhook_url"):
        await create(client, [line("a")], **forbidden)
