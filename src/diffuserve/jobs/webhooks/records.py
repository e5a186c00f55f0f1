"""Rows of the tables of webhooks as values."""

from dataclasses import fields
from typing import Any

import sqlalchemy as sa

from diffuserve.domain.jobs.webhook import Delivery, DeliveryStatus, WebhookEndpoint, WebhookEvent


def endpoint_of(row: sa.Row[Any]) -> WebhookEndpoint:
    """Return the endpoint in a row of `webhook_endpoints`."""
    return WebhookEndpoint(**{field.name: getattr(row, field.name) for field in fields(WebhookEndpoint)})


def delivery_of(row: sa.Row[Any]) -> Delivery:
    """Return the delivery in a row of `webhook_deliveries`."""
    values = {field.name: getattr(row, field.name) for field in fields(Delivery)}
    values["type"], values["status"] = WebhookEvent(row.type), DeliveryStatus(row.status)
    return Delivery(**values)
