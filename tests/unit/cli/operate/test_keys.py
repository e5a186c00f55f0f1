"""`diffuserve keys` and `diffuserve db`, directly in the database."""

import asyncio
import json
from pathlib import Path

import pytest

from diffuserve.domain.errors import Unauthorized
from diffuserve.domain.tenant import ApiKey, Role, Tenant
from diffuserve.settings import Settings
from diffuserve.wiring.control import open_store
from support.command import Invoke


def owner(secret: str) -> tuple[ApiKey, Tenant | None]:
    async def authenticate() -> tuple[ApiKey, Tenant | None]:
        async with open_store(Settings()) as store:
            key = await store.keys.authenticate(secret)
            return key, await store.operations.tenant(key.tenant_id) if key.tenant_id else None

    return asyncio.run(authenticate())


def test_a_tenants_key_has_the_plan_and_the_limits_of_its_tenant(invoke: Invoke) -> None:
    caps = ["--plan", "pro", "--weight", "2.5", "--max-running", "3", "--max-queued", "9"]
    created = invoke("keys", "create", "--role", "tenant", "--tenant", "studio", *caps)
    assert created.code == 0
    assert "first key" in created.err
    key, tenant = owner(created.out)
    assert (key.role, key.tenant_id) == (Role.TENANT, "studio")
    assert tenant is not None
    assert (tenant.plan.name, tenant.plan.weight) == ("pro", 2.5)
    assert (tenant.plan.max_running, tenant.plan.max_queued) == (3, 9)


@pytest.mark.parametrize("role", ["worker", "operator"])
def test_other_roles_have_keys_without_a_tenant(invoke: Invoke, role: str) -> None:
    created = invoke("keys", "create", "--role", role, "--json")
    assert created.code == 0
    key = json.loads(created.out)
    assert owner(key["secret"])[0].id == key["id"]
    assert owner(key["secret"])[0].role == role


def test_a_list_shows_no_secret_and_a_revoked_key_is_refused(invoke: Invoke) -> None:
    secret = invoke("keys", "create", "--tenant", "studio").out
    as_json, as_table = invoke("keys", "list", "--json"), invoke("keys", "list")
    (listed,) = json.loads(as_json.out)
    assert (listed["tenant"], listed["revoked_at"]) == ("studio", None)
    assert "studio" in as_table.out
    assert secret not in as_json.out + as_table.out
    assert invoke("keys", "revoke", listed["id"]).code == 0
    assert json.loads(invoke("keys", "list", "--json").out)[0]["revoked_at"]
    with pytest.raises(Unauthorized):
        owner(secret)


def test_a_list_shows_each_tenants_plan_and_its_own_limits(invoke: Invoke) -> None:
    invoke("keys", "create", "--tenant", "studio", "--plan", "pro", "--max-running", "3")
    invoke("keys", "create", "--tenant", "newsroom")
    invoke("keys", "create", "--role", "worker")
    listed = json.loads(invoke("keys", "list", "--json").out)
    assert [(key["tenant"], key["plan"], key["overrides"]) for key in listed] == [
        ("studio", "pro", {"max_running": 3}),
        ("newsroom", "standard", {}),
        (None, None, {}),
    ]
    header, *rows = invoke("keys", "list").out.splitlines()
    assert header.split() == ["id", "role", "tenant", "plan", "created", "revoked"]
    assert "pro (max_running 3)" in rows[0]
    assert "standard" in rows[1]


def test_a_rotated_key_has_a_successor_beside_it(invoke: Invoke) -> None:
    old_secret = invoke("keys", "create", "--tenant", "studio", "--plan", "pro").out
    (old,) = json.loads(invoke("keys", "list", "--json").out)
    rotated = invoke("keys", "rotate", old["id"], "--overlap-seconds", "3600")
    assert rotated.code == 0
    assert f"{old['id']} is valid for 3600 s more" in rotated.err
    for secret in (old_secret, rotated.out):
        key, tenant = owner(secret)
        assert key.tenant_id == "studio"
        assert tenant is not None
        assert tenant.plan.name == "pro"
    assert "stays closed" not in invoke("keys", "revoke", old["id"]).err
    with pytest.raises(Unauthorized):
        owner(old_secret)
    new_id = owner(rotated.out)[0].id
    last = json.loads(invoke("keys", "rotate", new_id, "--overlap-seconds", "0", "--json").out)
    assert owner(last["secret"])[0].id == last["id"]
    with pytest.raises(Unauthorized):
        owner(rotated.out)


def url_secrets() -> list[bytes]:
    async def read() -> list[bytes]:
        async with open_store(Settings()) as store:
            return await store.url_secrets.valid()

    return asyncio.run(read())


def test_the_secret_of_urls_rotates_with_an_overlap_or_without(invoke: Invoke) -> None:
    [first] = url_secrets()
    rotated = invoke("keys", "rotate-url-secret", "--overlap-seconds", "3600")
    assert (rotated.code, rotated.out) == (0, "")
    assert "3600 s" in rotated.err
    second, overlapping = url_secrets()
    assert overlapping == first != second
    assert invoke("keys", "rotate-url-secret", "--overlap-seconds", "0").code == 0
    assert not {first, second}.intersection(url_secrets())
    assert invoke("keys", "rotate-url-secret", "--overlap-seconds", "-1").code == 2


def test_revoking_the_last_key_tells_that_the_server_stays_closed(invoke: Invoke) -> None:
    for name in ("studio", "newsroom"):
        assert invoke("keys", "create", "--tenant", name).code == 0
    first, last = [key["id"] for key in json.loads(invoke("keys", "list", "--json").out)]
    assert "stays closed" not in invoke("keys", "revoke", first).err
    told = " ".join(invoke("keys", "revoke", last).err.split())
    assert "The server stays closed" in told
    assert "diffuserve keys create" in told
    assert "first key" not in invoke("keys", "create", "--tenant", "studio").err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["create"], "--tenant NAME"),
        (["create", "--tenant", " "], "--tenant NAME"),
        (["create", "--tenant", "x", "--plan", "nix"], "known plans: free, standard, pro"),
        (["create", "--tenant", "x", "--weight", "0"], "weight=0"),
        (["create", "--tenant", "x", "--weight", "nan"], "weight=nan"),
        (["create", "--tenant", "x", "--max-running", "-1"], "max_running=-1"),
        (["create", "--role", "worker", "--tenant", "x"], "only a tenant's key"),
        (["create", "--tenant", "operator"], "choose another name"),
        (["create", "--tenant", "default"], "choose another name"),
        (["create", "--role", "nix"], "nix"),
        (["revoke", "nix"], "nix"),
        (["rotate", "nix"], "nix"),
        (["rotate", "nix", "--overlap-seconds", "-1"], "overlap-seconds"),
        (["rotate", "nix", "--overlap-seconds", "nan"], "overlap-seconds"),
    ],
)
def test_bad_options_are_one_clear_line(invoke: Invoke, arguments: list[str], message: str) -> None:
    refused = invoke("keys", *arguments)
    assert (refused.code, refused.out) == (2, "")
    assert message in refused.err


def test_upgrading_the_database_twice_does_no_harm(invoke: Invoke, tmp_path: Path) -> None:
    assert invoke("db", "upgrade").code == 0
    assert (tmp_path / "data" / "diffuserve.db").exists()
    assert invoke("db", "upgrade").code == 0


def test_an_unavailable_database_is_one_clear_line(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffuserve.jobs.database.outages._PATIENCE_SECONDS", 0.3)
    failed = invoke("db", "upgrade", "--database-url", "postgresql://u:s3cret@127.0.0.1:1/jobs")
    assert failed.code == 1
    assert failed.err.startswith("error: cannot open the database")
    assert len(failed.err.splitlines()) == 1
    assert "s3cret" not in failed.err
