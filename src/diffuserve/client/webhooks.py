"""Client for the webhooks of a server: endpoints, deliveries, and the secret that signs messages."""

from diffuserve.client.codec import decode
from diffuserve.client.http import HttpTransport, RequestOptions
from diffuserve.client.ids import checked_id
from diffuserve.domain.resources.webhook import (
    DeliveryPage,
    DeliveryResource,
    WebhookEndpointPage,
    WebhookEndpointResource,
    WebhookSecretResource,
)


class WebhookClient:
    """Reads webhooks and redelivers messages. Every method may raise `ServerUnavailable`."""

    def __init__(self, http: HttpTransport) -> None:
        self._http = http

    async def endpoints(self, limit: int) -> WebhookEndpointPage:
        """Return the newest endpoints: URLs to which messages were written."""
        return decode(WebhookEndpointPage, await self._content("GET", "", limit=limit))

    async def deliveries(self, endpoint_id: str, limit: int) -> DeliveryPage:
        """Return the newest deliveries to an endpoint. Raise `EndpointNotFound`."""
        return decode(
            DeliveryPage, await self._content("GET", f"/{checked_id(endpoint_id)}/deliveries", limit=limit)
        )

    async def redeliver(self, endpoint_id: str, delivery_id: str) -> DeliveryResource:
        """Deliver a message again at once. Raise `DeliveryNotFound`, or `Conflict` if it is disabled."""
        path = f"/{checked_id(endpoint_id)}/deliveries/{checked_id(delivery_id)}/redeliver"
        return decode(DeliveryResource, await self._content("POST", path))

    async def enable(self, endpoint_id: str) -> WebhookEndpointResource:
        """Send messages to a disabled endpoint again. Raise `EndpointNotFound`."""
        return decode(
            WebhookEndpointResource, await self._content("POST", f"/{checked_id(endpoint_id)}/enable")
        )

    async def secret(self) -> WebhookSecretResource:
        """Return the secret that signs the caller's messages."""
        return decode(WebhookSecretResource, await self._content("GET", "/secret"))

    async def rotate_secret(self) -> WebhookSecretResource:
        """Replace the secret and return the new one; for a day messages are signed with both."""
        return decode(WebhookSecretResource, await self._content("POST", "/secret/rotate"))

    async def _content(self, method: str, path: str, **params: int) -> bytes:
        response = await self._http.request(method, f"/v1/webhooks{path}", RequestOptions(params=params))
        return response.content
