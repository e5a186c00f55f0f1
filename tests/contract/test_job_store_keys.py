"""API keys and tenants."""

import pytest
import sqlalchemy as sa

from diffuserve.domain.errors import KeyNotFound, Unauthorized
from diffuserve.domain.tenant import DEFAULT_PLANS, PlanOverrides, Role
from diffuserve.jobs import schema
from diffuserve.jobs.store import JobStore
from diffuserve.testing.fake_clock import FakeClock


async def test_a_key_authenticates_until_it_is_revoked(job_store: JobStore) -> None:
    assert not await job_store.keys.has_valid_key()
    key, secret = await job_store.keys.create(Role.TENANT, tenant_id="ada")
    assert await job_store.keys.has_valid_key()
    assert await job_store.keys.authenticate(secret) == key
    await job_store.keys.revoke(key.id)
    with pytest.raises(Unauthorized):
        await job_store.keys.authenticate(secret)
    assert not await job_store.keys.has_valid_key()
    assert [listed.revoked_at is None for listed in await job_store.keys.list_keys()] == [False]


@pytest.mark.parametrize("wrong", ["{secret}x", "x{secret}", "", "dfs_no_key"])
async def test_a_wrong_secret_is_unauthorized(job_store: JobStore, wrong: str) -> None:
    _, secret = await job_store.keys.create(Role.OPERATOR)
    with pytest.raises(Unauthorized):
        await job_store.keys.authenticate(wrong.format(secret=secret))


async def test_a_keys_secret_is_not_stored(job_store: JobStore) -> None:
    _, shown = await job_store.keys.create(Role.WORKER)
    rows = await job_store.database.rows(sa.select(schema.api_keys))
    assert shown.split("_", 2)[2] not in str(rows)


async def test_a_key_sets_its_tenants_plan(job_store: JobStore) -> None:
    assert (await job_store.operations.tenant("ada")).plan == DEFAULT_PLANS["standard"]
    overrides = PlanOverrides(weight=9.0)
    await job_store.keys.create(Role.TENANT, tenant_id="ada", plan="free", overrides=overrides)
    plan = (await job_store.operations.tenant("ada")).plan
    assert (plan.name, plan.weight, plan.max_running) == ("free", 9.0, DEFAULT_PLANS["free"].max_running)
    await job_store.keys.create(Role.TENANT, tenant_id="ada")
    assert (await job_store.operations.tenant("ada")).plan == plan, "a second key leaves it as it is"


async def test_revoking_an_unknown_key_is_an_error(job_store: JobStore) -> None:
    with pytest.raises(KeyNotFound):
        await job_store.keys.revoke("nobody")


async def test_the_secret_of_urls_stays_the_same_until_it_is_rotated(
    job_store: JobStore, clock: FakeClock
) -> None:
    [first] = await job_store.url_secrets.valid()
    assert await job_store.url_secrets.valid() == [first]
    clock.advance(1.0)
    await job_store.url_secrets.rotate(overlap_seconds=100.0)
    second, old = await job_store.url_secrets.valid()
    assert old == first != second
    clock.advance(50.0)
    await job_store.url_secrets.rotate(overlap_seconds=100.0)
    assert (await job_store.url_secrets.valid())[1:] == [second, first]
    clock.advance(51.0)
    assert (await job_store.url_secrets.valid())[1:] == [second], "a rotation prolongs no older secret"
    await job_store.url_secrets.rotate(overlap_seconds=0.0)
    assert len(await job_store.url_secrets.valid()) == 1, "a leaked secret is invalid at once"
