"""Keys are made in the database, without a server."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from diffuserve.cli import main as cli
from diffuserve.cli.wiring.control import open_store
from diffuserve.domain.errors import Unauthorized
from diffuserve.domain.tenant import ApiKey, Role, Tenant
from diffuserve.settings import Settings


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIFFUSERVE_DATA_DIR", str(tmp_path / "data"))


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> "Say":
    return Say(monkeypatch, capsys)


class Say:
    """Runs a command; gives its exit code, its output and its complaints."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["diffuserve", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        said = self._capsys.readouterr()
        return int(stop.value.code or 0), said.out.strip(), said.err


def owner(secret: str) -> tuple[ApiKey, Tenant | None]:
    async def ask() -> tuple[ApiKey, Tenant | None]:
        async with open_store(Settings()) as store:
            key = await store.keys.authenticate(secret)
            return key, await store.operations.tenant(key.tenant_id) if key.tenant_id else None

    return asyncio.run(ask())


def test_a_tenants_key_opens_with_its_plan_and_its_own_caps(say: Say) -> None:
    caps = ["--plan", "pro", "--weight", "2.5", "--max-running", "3", "--max-queued", "9"]
    code, secret, errors = say("keys", "create", "--role", "tenant", "--tenant", "studio", *caps)
    assert code == 0
    assert "first key" in errors
    key, tenant = owner(secret)
    assert (key.role, key.tenant_id) == (Role.TENANT, "studio")
    assert tenant is not None
    assert (tenant.plan.name, tenant.plan.weight) == ("pro", 2.5)
    assert (tenant.plan.max_running, tenant.plan.max_queued) == (3, 9)


@pytest.mark.parametrize("role", ["worker", "operator"])
def test_other_roles_have_keys_as_well(say: Say, role: str) -> None:
    code, output, _ = say("keys", "create", "--role", role, "--json")
    assert code == 0
    made = json.loads(output)
    assert owner(made["secret"])[0].id == made["id"]
    assert owner(made["secret"])[0].role == role


def test_a_list_shows_no_secret_and_a_revoked_key_opens_nothing(say: Say) -> None:
    secret = say("keys", "create", "--tenant", "studio")[1]
    code, output, _ = say("keys", "list", "--json")
    assert code == 0
    (listed,) = json.loads(output)
    assert (listed["tenant"], listed["revoked_at"]) == ("studio", None)
    assert secret not in output
    assert secret not in say("keys", "list")[1]
    assert say("keys", "revoke", listed["id"])[0] == 0
    assert json.loads(say("keys", "list", "--json")[1])[0]["revoked_at"]
    with pytest.raises(Unauthorized):
        owner(secret)


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
        (["create", "--role", "nix"], "nix"),
        (["revoke", "nix"], "nix"),
    ],
)
def test_a_wrong_word_is_one_clear_line(say: Say, arguments: list[str], message: str) -> None:
    code, output, errors = say("keys", *arguments)
    assert (code, output) == (2, "")
    assert message in errors


def test_a_database_is_brought_up_to_date_and_may_be_again(say: Say, tmp_path: Path) -> None:
    assert say("db", "upgrade")[0] == 0
    assert (tmp_path / "data" / "diffuserve.db").exists()
    assert say("db", "upgrade")[0] == 0


def test_a_database_that_is_away_is_one_clear_line(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffuserve.jobs.database._PATIENCE_SECONDS", 0.3)
    code, _, errors = say("db", "upgrade", "--database-url", "postgresql://u:s3cret@127.0.0.1:1/jobs")
    assert code == 1
    assert errors.startswith("error: the database is away")
    assert len(errors.splitlines()) == 1
    assert "s3cret" not in errors
