"""What a server without API keys refuses, and what the log says of it."""

import logging

from diffuserve.api.door.origins import EVERY_ORIGIN
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.tenant import OPERATOR_TENANT
from diffuserve.jobs.store import JobStore
from diffuserve.wiring.control import ControlPlane

log = logging.getLogger(__name__)


def check_origins(plane: ControlPlane) -> None:
    """Raise `InvalidParams` if the pages of every site could use a server that requires no keys."""
    if not plane.has_auth and EVERY_ORIGIN in plane.app.state.services.config.allowed_origins:
        raise InvalidParams(
            "allowed_origins",
            EVERY_ORIGIN,
            "every page that a browser shows could use this server, which requires no key; name the origins, "
            "or create a key with `diffuserve keys create`",
        )


def warn_of_open_server(address: str, no_auth: bool) -> None:
    """Log that everyone may do everything, and how to change that."""
    reason = "--no-auth was given" if no_auth else "there has never been an API key"
    remedy = "start it without --no-auth" if no_auth else "create a key with `diffuserve keys create`"
    log.warning(
        "OPEN SERVER: %s, so everyone who reaches %s may submit, read, cancel and delete every job, "
        "and act as a worker or an operator; to close it, %s",
        reason,
        address,
        remedy,
    )


async def warn_of_shared_name(store: JobStore) -> None:
    """Log that a tenant has the name of operators, which was free once."""
    if await store.keys.has_tenant_key(OPERATOR_TENANT):
        log.warning(
            "a key was made for the tenant %r, which sees what operators submit; "
            "make it one for another tenant with `diffuserve keys create`, and revoke the old one",
            OPERATOR_TENANT,
        )
