"""Webhooks: where a tenant is told, what became of each message, and the secret that signs them."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from diffuserve.api.auth.dependencies import Client
from diffuserve.api.path_params import DeliveryId, EndpointId, known_delivery_id
from diffuserve.api.responses import json_response, rfc3339
from diffuserve.api.serializers import Document
from diffuserve.api.services import ServicesOf
from diffuserve.api.webhooks.schemas import (
    DeliveryPageShape,
    DeliveryShape,
    EndpointShape,
    EndpointsShape,
    WebhookSecretShape,
)
from diffuserve.domain.webhook import Delivery, Endpoint

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"])


@router.get("", summary="List webhooks", response_model=EndpointsShape)
async def list_endpoints(services: ServicesOf, caller: Client) -> Response:
    """Every URL that a job or a batch has named."""
    endpoints = await services.store.webhooks.endpoints(caller.scope)
    return json_response({"data": [_endpoint_document(one) for one in endpoints]})


@router.get("/secret", summary="Get the signing secret", response_model=WebhookSecretShape)
async def get_secret(services: ServicesOf, caller: Client) -> Response:
    """Verify messages with it, by any library for Standard Webhooks."""
    return json_response({"secret": await services.store.webhooks.secret(caller.tenant_id)})


@router.post("/secret/rotate", summary="Replace the signing secret", response_model=WebhookSecretShape)
async def rotate_secret(services: ServicesOf, caller: Client) -> Response:
    """Gives the new one. For a day messages are signed with the old one as well."""
    overlap_seconds = services.config.webhook_overlap_seconds
    secret = await services.store.webhooks.rotate_secret(caller.tenant_id, overlap_seconds)
    return json_response({"secret": secret})


@router.post("/{endpoint_id}/enable", summary="Tell a webhook again", response_model=EndpointShape)
async def enable(endpoint_id: EndpointId, services: ServicesOf, caller: Client) -> Response:
    """After it has answered 410. What it missed is `skipped`, and can be redelivered."""
    return json_response(_endpoint_document(await services.store.webhooks.enable(endpoint_id, caller.scope)))


@router.get(
    "/{endpoint_id}/deliveries", summary="List deliveries, newest first", response_model=DeliveryPageShape
)
async def list_deliveries(
    endpoint_id: EndpointId,
    services: ServicesOf,
    caller: Client,
    after: Annotated[str | None, Query(description="The `next` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    found = await services.store.webhooks.deliveries(
        endpoint_id,
        caller.scope,
        after=None if after is None else known_delivery_id(after),
        limit=limit + 1,
    )
    page, has_more = found[:limit], len(found) > limit
    return json_response(
        {
            "data": [_delivery_document(one) for one in page],
            "has_more": has_more,
            "next": page[-1].id if has_more else None,
        }
    )


@router.post(
    "/{endpoint_id}/deliveries/{delivery_id}/redeliver",
    summary="Deliver again",
    status_code=202,
    response_model=DeliveryShape,
)
async def redeliver(
    endpoint_id: EndpointId, delivery_id: DeliveryId, services: ServicesOf, caller: Client
) -> Response:
    """At once, with all its attempts, and with the same `webhook-id`."""
    delivery = await services.store.webhooks.redeliver(endpoint_id, delivery_id, caller.scope)
    return json_response(_delivery_document(delivery), 202)


def _endpoint_document(endpoint: Endpoint) -> Document:
    return {
        "id": endpoint.id,
        "url": endpoint.url,
        "is_disabled": endpoint.disabled_at is not None,
        "created_at": rfc3339(endpoint.created_at),
    }


def _delivery_document(delivery: Delivery) -> Document:
    return {
        "id": delivery.id,
        "type": delivery.type,
        "subject_id": delivery.subject_id,
        "status": delivery.status,
        "num_attempts": delivery.num_attempts,
        "created_at": rfc3339(delivery.created_at),
        "next_attempt_at": rfc3339(delivery.next_at),
        "last_attempt_at": rfc3339(delivery.last_attempt_at),
        "last_status": delivery.last_status,
        "last_error": delivery.last_error,
    }
