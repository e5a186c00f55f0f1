"""API keys and tenants."""

import math

import pytest
import sqlalchemy as sa

from diffuserve.domain.errors import Conflict, InvalidParams, KeyNotFound, Unauthorized
from diffuserve.domain.tenant import DEFAULT_PLANS, PlanOverrides, Role
from diffuserve.jobs.database import schema
from diffuserve.jobs.security.keys import RotateKey
from diffuserve.jobs.store import JobStore
from diffuserve.testing.fake_clock import FakeClock


async def test_a_key_authenticates_until_it_is_revoked(job_store: JobStore) -> None:
    assert not await job_store.keys.has_valid_key()
    assert not await job_store.keys.has_key()
    key, secret = await job_store.keys.create(Role.TENANT, tenant_id="ada")
    assert await job_store.keys.has_valid_key()
    assert await job_store.keys.authenticate(secret) == key
    await job_store.keys.revoke(key.id)
    with pytest.raises(Unauthorized):
        await job_store.keys.authenticate(secret)
    assert not await job_store.keys.has_valid_key()
    assert await job_store.keys.has_key(), "a revoked key counts as one that there was"
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


@pytest.mark.parametrize("name", ["operator", "default", "Operator", " default "])
async def test_no_key_is_made_for_a_reserved_tenant(job_store: JobStore, name: str) -> None:
    with pytest.raises(InvalidParams, match="choose another name") as refused:
        await job_store.keys.create(Role.TENANT, tenant_id=name)
    assert refused.value.field == "tenant"
    assert not await job_store.keys.has_key()


async def test_a_rotated_key_and_its_successor_are_valid_until_the_overlap_ends(
    job_store: JobStore, clock: FakeClock
) -> None:
    old, old_secret = await job_store.keys.create(Role.TENANT, tenant_id="ada", plan="free")
    new, new_secret = await job_store.keys.rotate(old.id, overlap_seconds=60.0)
    assert (new.role, new.tenant_id) == (old.role, old.tenant_id)
    assert (await job_store.operations.tenant("ada")).plan.name == "free"
    for key, secret in ((old, old_secret), (new, new_secret)):
        assert (await job_store.keys.authenticate(secret)).id == key.id
    assert await job_store.keys.valid_among({old.id, new.id, "none"}) == {old.id, new.id}
    clock.advance(60.0)
    with pytest.raises(Unauthorized):
        await job_store.keys.authenticate(old_secret)
    assert (await job_store.keys.authenticate(new_secret)).id == new.id
    assert await job_store.keys.valid_among({old.id, new.id}) == {new.id}
    assert await job_store.keys.has_valid_key()


async def test_a_rotated_key_can_be_revoked_at_once(job_store: JobStore, clock: FakeClock) -> None:
    old, old_secret = await job_store.keys.create(Role.WORKER)
    await job_store.keys.rotate(old.id, overlap_seconds=60.0)
    await job_store.keys.revoke(old.id)
    with pytest.raises(Unauthorized):
        await job_store.keys.authenticate(old_secret)
    [revoked_at] = [key.revoked_at for key in await job_store.keys.list_keys() if key.id == old.id]
    clock.advance(1.0)
    await job_store.keys.revoke(old.id)
    assert [key.revoked_at for key in await job_store.keys.list_keys() if key.id == old.id] == [revoked_at]


async def test_a_key_is_rotated_once(job_store: JobStore) -> None:
    old, _ = await job_store.keys.create(Role.WORKER)
    await job_store.keys.rotate(old.id, overlap_seconds=60.0)
    with pytest.raises(Conflict, match="was replaced or revoked"):
        await job_store.keys.rotate(old.id, overlap_seconds=60.0)
    with pytest.raises(KeyNotFound):
        await job_store.keys.rotate("nobody", overlap_seconds=60.0)
    assert len(await job_store.keys.list_keys()) == 2


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
async def test_an_overlap_is_a_finite_time(job_store: JobStore, seconds: float) -> None:
    old, _ = await job_store.keys.create(Role.WORKER)
    with pytest.raises(InvalidParams, match="overlap_seconds"):
        await job_store.keys.rotate(old.id, overlap_seconds=seconds)


async def test_a_rotation_that_is_applied_twice_makes_one_key(job_store: JobStore) -> None:
    """The writer applies commands again after a commit whose result was lost."""
    old, _ = await job_store.keys.create(Role.OPERATOR)
    command = RotateKey(id="a1", secret="s", replaced_id=old.id, overlap_seconds=60.0)
    first, again = [await job_store.keys._writer.run(command) for _ in range(2)]
    assert first == again
    assert len(await job_store.keys.list_keys()) == 2


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
