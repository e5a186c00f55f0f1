"""A control plane's writer that freezes in the middle of a transaction.

Run as `python tests/support/freezing_writer.py URL`; it prints `open` at first, and `written` once the write
has succeeded after all.
"""

import asyncio
import os
import signal
import sys

import sqlalchemy as sa

from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.database import connections, schema
from diffuserve.jobs.database.outages import retry_while_unavailable

IDLE_SECONDS = 1


async def freeze(url: str) -> None:
    connections._IDLE_SECONDS = IDLE_SECONDS
    opened = connections.Database(url, StoreConfig())
    print("open", flush=True)

    def write(transaction: connections.Transaction) -> None:
        row = {"owner": "frozen", "secret": "", "created_at": transaction.now}
        transaction.execute(sa.insert(schema.signing_secrets), row)
        if not transaction.is_retry:
            os.kill(os.getpid(), signal.SIGSTOP)
        transaction.execute(sa.update(schema.signing_secrets).values(secret="woken"))

    await retry_while_unavailable(lambda is_retry: opened.write(write, is_retry))
    print("written", flush=True)


if __name__ == "__main__":
    asyncio.run(freeze(sys.argv[1]))
