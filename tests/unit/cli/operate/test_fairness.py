"""`diffuserve fairness`, directly in the database."""

import asyncio
import json

import sqlalchemy as sa

from diffuserve.jobs.database import schema
from diffuserve.jobs.database.connections import Transaction
from diffuserve.settings import Settings
from diffuserve.wiring.control import open_store
from support.command import Invoke


def spoil(tenant: str, vtime: float) -> None:
    def write(transaction: Transaction) -> None:
        changed = sa.update(schema.tenants).where(schema.tenants.c.id == tenant)
        transaction.execute(changed.values(vtime=vtime))

    async def run() -> None:
        async with open_store(Settings()) as store:
            await store.database.write(write)

    asyncio.run(run())


def test_virtual_times_are_shown_in_the_order_of_service_and_begin_anew(invoke: Invoke) -> None:
    for tenant in ("ada", "bob"):
        invoke("keys", "create", "--tenant", tenant, "--weight", "2")
    spoil("ada", 1e300)
    shown = json.loads(invoke("fairness", "show", "--json").out)
    assert [(each["tenant_id"], each["vtime"], each["weight"]) for each in shown] == [
        ("bob", 0.0, 2.0),
        ("ada", 1e300, 2.0),
    ]
    assert "ada" in invoke("fairness", "show").out
    done = invoke("fairness", "reset")
    assert (done.code, done.err) == (0, "the virtual times of 2 tenants begin anew\n")
    assert {each["vtime"] for each in json.loads(invoke("fairness", "show", "--json").out)} == {0.0}
