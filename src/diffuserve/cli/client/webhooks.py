"""`diffuserve webhooks`: endpoints, deliveries, and a trial of a receiver."""

import asyncio
import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from diffuserve.cli import options
from diffuserve.cli.client.ask import ask
from diffuserve.cli.client.jobs import age
from diffuserve.cli.display.echo import echo
from diffuserve.cli.display.results import results
from diffuserve.cli.exit_codes import FAILED
from diffuserve.client.codec import encode
from diffuserve.domain.errors import ServerUnavailable
from diffuserve.domain.jobs.webhook import DeliveryStatus
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.resources.webhook import (
    DeliveryResource,
    WebhookSecretResource,
)
from diffuserve.domain.text.timestamps import from_rfc3339
from diffuserve.settings import Settings

if TYPE_CHECKING:
    from diffuserve.sdk.async_client import AsyncClient

EXAMPLES = """
Examples:

  diffuserve webhooks test https://example.com/hooks/diffuserve

  diffuserve webhooks list

  diffuserve webhooks deliveries ID

  diffuserve webhooks redeliver ID DELIVERY
"""

_LOOK_SECONDS = 0.5
_TEST_SECONDS = 60.0  # a receiver may take 20 s, and the job of the trial a while to be canceled
_MAX_LISTED = 200

webhooks = typer.Typer(
    name="webhooks",
    help="Webhooks: URLs that jobs and batches named, and the messages to them.",
    epilog=EXAMPLES,
    no_args_is_help=True,
)

EndpointId = Annotated[str, typer.Argument(metavar="ID", help="Id that `diffuserve webhooks list` shows.")]
Limit = Annotated[int, typer.Option(min=1, max=_MAX_LISTED, help="Maximum number of rows.")]


@webhooks.command("list", epilog=EXAMPLES)
@options.takes_settings("server", "api_key")
def list_webhooks(settings: Settings, limit: Limit = 20, as_json: options.Json = False) -> None:
    """List the URLs to which messages were written, newest first.

    A URL is known once a job or a batch has named it as its webhook; one without messages for a week is
    forgotten.
    """
    page = ask(settings, lambda client: client.webhooks.endpoints(limit))
    if as_json:
        echo(encode(page))
        return
    table = Table("id", "state", "age", "url", box=None, header_style="bold", pad_edge=False)
    for endpoint in page.data:
        state = "disabled" if endpoint.is_disabled else "enabled"
        table.add_row(endpoint.id, state, age(from_rfc3339(endpoint.created_at)), endpoint.url)
    results().print(table)


@webhooks.command(epilog=EXAMPLES)
@options.takes_settings("server", "api_key")
def deliveries(
    settings: Settings, endpoint_id: EndpointId, limit: Limit = 20, as_json: options.Json = False
) -> None:
    """List the messages to a URL, newest first, with the outcome of the latest attempt."""
    page = ask(settings, lambda client: client.webhooks.deliveries(endpoint_id, limit))
    if as_json:
        echo(encode(page))
        return
    table = Table(
        "id", "status", "type", "about", "attempts", "outcome", box=None, header_style="bold", pad_edge=False
    )
    for delivery in page.data:
        attempts = str(delivery.num_attempts)
        row = (delivery.id, delivery.status, delivery.type, delivery.subject_id, attempts)
        table.add_row(*row, outcome_of(delivery))
    results().print(table)


@webhooks.command(epilog=EXAMPLES)
@options.takes_settings("server", "api_key")
def redeliver(
    settings: Settings,
    endpoint_id: EndpointId,
    delivery_id: Annotated[
        str, typer.Argument(metavar="DELIVERY", help="Id that `diffuserve webhooks deliveries` shows.")
    ],
    as_json: options.Json = False,
) -> None:
    """Send a message again at once, with all its attempts."""
    delivery = ask(settings, lambda client: client.webhooks.redeliver(endpoint_id, delivery_id))
    echo(encode(delivery) if as_json else f"{delivery.id} {delivery.status}")


@webhooks.command(epilog=EXAMPLES)
@options.takes_settings("server", "api_key")
def enable(settings: Settings, endpoint_id: EndpointId, as_json: options.Json = False) -> None:
    """Send messages again to a URL that was disabled because it responded with 410."""
    endpoint = ask(settings, lambda client: client.webhooks.enable(endpoint_id))
    echo(encode(endpoint) if as_json else f"{endpoint.id} enabled")


@webhooks.command(epilog="Example:\n\n  diffuserve webhooks secret --rotate")
@options.takes_settings("server", "api_key")
def secret(
    settings: Settings,
    rotate: Annotated[
        bool, typer.Option("--rotate", help="Replace it; for a day messages are signed with both.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Print the secret with which any library for Standard Webhooks verifies messages."""
    found = ask(settings, lambda client: _secret(client, rotate))
    echo(encode(found) if as_json else found.secret)


async def _secret(client: "AsyncClient", is_rotated: bool) -> WebhookSecretResource:
    return await (client.webhooks.rotate_secret() if is_rotated else client.webhooks.secret())


@webhooks.command("test", epilog=EXAMPLES)
@options.takes_settings("server", "api_key")
def try_out(
    settings: Settings,
    url: Annotated[str, typer.Argument(metavar="URL", help="URL of the receiver.")],
    as_json: options.Json = False,
) -> None:
    """Send a real, signed message to a URL, and show what came of it.

    It is about a job that is submitted for this and canceled at once. The exit code is 1 if the first attempt
    fails; further ones follow.
    """
    delivery = ask(settings, lambda client: _try_out(client, url))
    echo(encode(delivery) if as_json else f"{delivery.id} {delivery.status}: {outcome_of(delivery)}")
    raise typer.Exit(0 if delivery.status is DeliveryStatus.DELIVERED else FAILED)


async def _try_out(client: "AsyncClient", url: str) -> DeliveryResource:
    """Return the delivery after its first attempt. Raise `ServerUnavailable` after a minute."""
    params = GenerationParams(prompt="a trial of a webhook", num_inference_steps=1)
    job = await client.submit(params, webhook={"url": url})
    await client.cancel(job.id)
    deadline = time.monotonic() + _TEST_SECONDS
    while time.monotonic() < deadline:
        delivery = await _delivery_about(client, url, job.id)
        if delivery is not None and delivery.num_attempts > 0:
            if delivery.status is DeliveryStatus.DELIVERED:
                await client.delete(job.id)  # it would stand in the gallery
            return delivery
        await asyncio.sleep(_LOOK_SECONDS)
    raise ServerUnavailable(f"no message about {job.id} was sent within {_TEST_SECONDS:.0f} s")


async def _delivery_about(client: "AsyncClient", url: str, job_id: str) -> DeliveryResource | None:
    for endpoint in (await client.webhooks.endpoints(_MAX_LISTED)).data:
        if endpoint.url == url:
            for delivery in (await client.webhooks.deliveries(endpoint.id, _MAX_LISTED)).data:
                if delivery.subject_id == job_id:
                    return delivery
    return None


def outcome_of(delivery: DeliveryResource) -> str:
    """Describe what came of the latest attempt."""
    if delivery.last_attempt_at is None:
        return "not sent yet"
    if delivery.last_status is not None:
        return f"responded with {delivery.last_status}"
    return delivery.last_error or "no response"
