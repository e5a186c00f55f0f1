"""Databases that cannot be opened, as the commands tell of them."""

import socket

import asyncpg
import pytest
from sqlalchemy.exc import DBAPIError

from diffuserve.domain.errors import ServerUnavailable
from diffuserve.jobs.database import outages
from diffuserve.settings import Settings
from diffuserve.wiring.control import open_store
from diffuserve.wiring.database_errors import cannot_open
from support.postgres import PostgresServer


async def refusal(url: str) -> str:
    with pytest.raises(ServerUnavailable) as refused:
        async with open_store(Settings(database_url=url)):
            raise AssertionError("it must not open")
    assert len(str(refused.value).splitlines()) == 1
    return str(refused.value)


async def test_a_missing_database_says_how_to_create_it(postgres: PostgresServer) -> None:
    message = await refusal(postgres.url.replace("/postgres?", "/no_such_database?"))
    assert 'database "no_such_database" does not exist' in message
    assert "create it with `createdb -h" in message
    assert message.count(str(postgres.folder)) <= 2, "the place, and the place in the remedy"


async def test_an_unknown_user_is_told_what_to_correct(postgres: PostgresServer) -> None:
    user = postgres.url.partition("://")[2].partition("@")[0]
    message = await refusal(postgres.url.replace(f"//{user}@", "//nobody_here:s3cret@"))
    assert "nobody_here" in message
    assert "correct the user or the password in --database-url or DIFFUSERVE_DATABASE_URL" in message
    assert "s3cret" not in message


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "no-such-host.invalid"])
async def test_a_server_that_is_not_there_is_named_once_with_its_port(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outages, "_PATIENCE_SECONDS", 0.1)
    with socket.socket() as closed:  # bound, so that nobody else takes the port, and not listening
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        message = await refusal(f"postgresql://u:s3cret@{host}:{port}/jobs")
    assert message.startswith(f"cannot open the database at {host}:{port}: ")
    assert message.endswith("; start it, or correct --database-url or DIFFUSERVE_DATABASE_URL")
    assert message.count(str(port)) == 1
    assert "s3cret" not in message


def test_a_held_lock_is_no_reason_to_correct_the_address() -> None:
    held = DBAPIError(None, None, asyncpg.LockNotAvailableError("canceling statement due to lock timeout"))
    message = str(cannot_open("postgresql://u@db/jobs", held))
    assert message.endswith("end it: pg_stat_activity names it")
    assert "DATABASE_URL" not in message
