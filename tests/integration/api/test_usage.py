"""Tenants and operators read the use of the devices over HTTP."""

import httpx
import pytest

from diffuserve.client.codec import decode
from diffuserve.domain.resources.usage import UsageResource
from diffuserve.domain.tenant import Role
from diffuserve.jobs.store import JobStore
from support.store_driver import add_worker, claim_one, complete, new_job


@pytest.fixture
async def used(store: JobStore) -> None:
    """Two tenants had a job each."""
    worker = await add_worker(store, price_per_hour=3.6)
    for tenant, seconds in (("ada", 0.4), ("bob", 0.3)):
        await store.jobs.submit(new_job(tenant))
        await complete(store, await claim_one(store, worker), seconds)


async def read(http: httpx.AsyncClient, query: str = "", key: str | None = None) -> UsageResource:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    response = await http.get(f"/v1/usage{query}", headers=headers)
    return decode(UsageResource, response.raise_for_status().content)


@pytest.mark.usefixtures("used")
async def test_operators_see_all_and_tenants_themselves(http: httpx.AsyncClient, store: JobStore) -> None:
    _, bob = await store.keys.create(Role.TENANT, tenant_id="bob")
    _, operator = await store.keys.create(Role.OPERATOR)
    everybody = await read(http, "?group_by=tenant_id&group_by=outcome", operator)
    assert [(row.tenant_id, row.seconds) for row in everybody.data] == [("ada", 0.4), ("bob", 0.3)]
    assert everybody.fleet is not None
    one = await read(http, "?group_by=tenant_id&tenant_id=ada", operator)
    assert [(row.tenant_id, row.seconds) for row in one.data] == [("ada", 0.4)]
    own = await read(http, "?group_by=tenant_id&tenant_id=ada", bob)
    assert [(row.tenant_id, row.seconds) for row in own.data] == [("bob", 0.3)]
    assert own.fleet is None


@pytest.mark.usefixtures("used")
async def test_by_default_use_is_told_apart_by_day_and_model(http: httpx.AsyncClient) -> None:
    found = await read(http)
    (row,) = found.data
    assert (row.day, row.model, row.tenant_id, row.num_attempts) == (found.until, "tiny", None, 2)
    assert row.cost == pytest.approx(0.7 * 3.6 / 3_600.0)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("since=soon", "since"),
        ("since=0001-01-01", "since"),
        ("until=0001-01-02", "until"),
        ("since=2026-01-01&until=9999-12-31", "until"),
        ("group_by=price", "group_by"),
        ("since=2026-02-01&until=2026-01-01", "since"),
        ("tenant_id=" + "a" * 201, "tenant_id"),
    ],
)
async def test_what_cannot_be_asked_is_refused(http: httpx.AsyncClient, query: str, field: str) -> None:
    response = await http.get(f"/v1/usage?{query}")
    assert response.status_code == 422
    assert field in response.text
