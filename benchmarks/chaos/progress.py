"""Lines about a chaos run while it goes on."""

import asyncio
import time

from benchmarks.chaos.clients import Clients
from benchmarks.chaos.faults import FaultInjector
from benchmarks.chaos.plan import Plan

_EVERY_SECONDS = 30.0


async def print_progress(database: str, clients: Clients, injector: FaultInjector, plan: Plan) -> None:
    """Print a line now and then until canceled."""
    started = time.monotonic()
    while True:
        await asyncio.sleep(_EVERY_SECONDS)
        minutes, seconds = divmod(int(time.monotonic() - started), 60)
        toll, crossings = injector.toll, clients.trespassers.crossings
        ended = sum(status is not None for status in clients.told.values())
        print(
            f"{database} {minutes}:{seconds:02d}: {len(clients.told):,} jobs accepted, {ended:,} ended; "
            f"{toll.num_faults} faults, {toll.num_kills} of {plan.num_kills} kills; "
            f"{crossings.crossed} of {crossings.asked:,} crossings",
            flush=True,
        )
