"""Webhooks: endpoints, deliveries of messages, and the secret that signs them."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from diffuserve.api.auth.quota import ClientCaller, SubmittingCaller
from diffuserve.api.config import ApiConfig
from diffuserve.api.door.json_route import JsonRoute
from diffuserve.api.http.parts import Uses
from diffuserve.api.http.path_params import DeliveryId, EndpointId, checked_delivery_id, checked_endpoint_id
from diffuserve.api.http.responses import json_response
from diffuserve.api.resources.serializers import delivery_resource, page_of, webhook_endpoint_resource
from diffuserve.domain.resources.webhook import (
    DeliveryPage,
    DeliveryResource,
    WebhookEndpointPage,
    WebhookEndpointResource,
    WebhookSecretResource,
)
from diffuserve.jobs.store import JobStore

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"], route_class=JsonRoute)


@dataclass(frozen=True)
class WebhookParts:
    """Parts that these routes use."""

    store: JobStore
    config: ApiConfig


Used = Annotated[WebhookParts, Depends(Uses(WebhookParts))]


@router.get("", summary="List webhooks, newest first", response_model=WebhookEndpointPage)
async def list_webhooks(
    parts: Used,
    caller: ClientCaller,
    after: Annotated[str | None, Query(description="The `next` of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """List the URLs to which messages were written; one that gets none for a week is forgotten."""
    endpoints = await parts.store.webhooks.endpoints(
        caller.scope, after=None if after is None else checked_endpoint_id(after), limit=limit + 1
    )
    resources = [webhook_endpoint_resource(endpoint) for endpoint in endpoints[:limit]]
    return json_response(page_of(WebhookEndpointPage, resources, has_more=len(endpoints) > limit))


@router.get("/secret", summary="Get the signing secret", response_model=WebhookSecretResource)
async def get_webhook_secret(parts: Used, caller: ClientCaller) -> Response:
    """Get the secret with which any library for Standard Webhooks verifies messages."""
    return json_response(WebhookSecretResource(secret=await parts.store.webhooks.secret(caller.tenant_id)))


@router.post("/secret/rotate", summary="Replace the signing secret", response_model=WebhookSecretResource)
async def rotate_webhook_secret(parts: Used, caller: ClientCaller) -> Response:
    """Replace the secret and return the new one. For a day messages are signed with the old one as well."""
    overlap_seconds = parts.config.webhook_overlap_seconds
    secret = await parts.store.webhooks.rotate_secret(caller.tenant_id, overlap_seconds)
    return json_response(WebhookSecretResource(secret=secret))


@router.post(
    "/{endpoint_id}/enable", summary="Enable a disabled webhook", response_model=WebhookEndpointResource
)
async def enable_webhook(endpoint_id: EndpointId, parts: Used, caller: ClientCaller) -> Response:
    """Enable an endpoint that responded with 410. Messages that it missed are `skipped`; redeliver them."""
    endpoint = await parts.store.webhooks.enable(endpoint_id, caller.scope)
    return json_response(webhook_endpoint_resource(endpoint))


@router.get("/{endpoint_id}/deliveries", summary="List deliveries, newest first", response_model=DeliveryPage)
async def list_webhook_deliveries(
    endpoint_id: EndpointId,
    parts: Used,
    caller: ClientCaller,
    after: Annotated[str | None, Query(description="The `next` of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """List the messages to an endpoint, each with the outcome of its latest attempt."""
    deliveries = await parts.store.webhooks.deliveries(
        endpoint_id,
        caller.scope,
        after=None if after is None else checked_delivery_id(after),
        limit=limit + 1,
    )
    resources = [delivery_resource(delivery) for delivery in deliveries[:limit]]
    return json_response(page_of(DeliveryPage, resources, has_more=len(deliveries) > limit))


@router.post(
    "/{endpoint_id}/deliveries/{delivery_id}/redeliver",
    summary="Deliver again",
    status_code=202,
    response_model=DeliveryResource,
)
async def redeliver_webhook(
    endpoint_id: EndpointId, delivery_id: DeliveryId, parts: Used, caller: SubmittingCaller
) -> Response:
    """Deliver a message again at once, with all its attempts and the same `webhook-id`.

    Counts against the plan's request rate, since each call makes a request to the endpoint.
    """
    delivery = await parts.store.webhooks.redeliver(endpoint_id, delivery_id, caller.scope)
    return json_response(delivery_resource(delivery), 202)
