"""Runs an agent, or a further node of a worker, until a signal or the program that starts it ends it."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpx

from diffuserve.agent.agent import WorkerAgent
from diffuserve.agent.config import WorkerConfig
from diffuserve.agent.jobs.adapter_fetcher import FetchAdapter, no_store
from diffuserve.agent.parent import Parent
from diffuserve.agent.registration.membership import with_key_remedy
from diffuserve.agent.spot.machine import find_machine
from diffuserve.backoff import Backoff, RestartPolicy, supervise
from diffuserve.client.api_key import KeyFile
from diffuserve.client.http import HttpTransport
from diffuserve.client.leases import LeaseClient
from diffuserve.domain.errors import (
    DiffuserveError,
    Forbidden,
    ServerRefused,
    ServerUnavailable,
    Unauthorized,
)
from diffuserve.stop_signals import call_on_stop_signals
from diffuserve.telemetry.outage_log import OutageLog
from diffuserve.telemetry.tracer_choice import open_tracer

log = logging.getLogger(__name__)

# After 15 seconds the first node has missed this node's heartbeats too: its old group has ended, and
# cannot be joined by mistake.
_NODE_RESTARTS = RestartPolicy(Backoff(first_seconds=15.0, longest_seconds=60.0), healthy_seconds=60.0)
_PATIENCE_SECONDS = 6 * 3600.0
"""A running job is kept while the control plane, or its artifact store, is unavailable for so long."""


def run_worker(config: WorkerConfig, fetch_adapter: FetchAdapter = no_store) -> int:
    """Run an agent. Return 0 after a drain, 1 if the engine died too often, 2 if it cannot start."""
    return asyncio.run(_run(config, fetch_adapter))


def run_node(config: WorkerConfig) -> int:
    """Run the ranks of a node beside the first, again whenever their group broke. Return 0 when stopped."""
    return asyncio.run(_run_node(config))


@asynccontextmanager
async def open_agent(
    config: WorkerConfig,
    fetch_adapter: FetchAdapter = no_store,
    transport: httpx.AsyncBaseTransport | None = None,
) -> AsyncIterator[WorkerAgent]:
    """Yield an agent for a program that has signals of its own, such as an actor: none is handled here.

    Its `run` returns the code of `run_worker`, and its `drain` ends it, both in the loop that is running, on
    any thread; engines end with that thread. `fetch_adapter` returns the files of stored adapters; without
    it jobs that need one fail. `transport` carries requests in place of connections, to a server that has
    started the agent, and to buckets. Raise `Forbidden` or `ServerRefused`, as `check_server` does, for one
    that has not.
    """
    tracer = open_tracer(config.tracing, "diffuserve-worker")
    try:
        # A server that has started it gives it its address and key, once there is one.
        is_of_server = config.parent_fd is not None or transport is not None
        client = _client(config, transport) if is_of_server else await _checked_client(config)
        machine = await find_machine(config.spot)
        yield WorkerAgent(config, client, machine=machine, tracer=tracer, fetch_adapter=fetch_adapter)
    finally:
        await tracer.close()


async def keep_ranks(config: WorkerConfig, stop: asyncio.Event) -> int:
    """Do as `run_node`, but ignore signals: run until `stop` is set; canceling the task kills the ranks."""

    async def run() -> int:
        process = await asyncio.create_subprocess_exec(*config.command)
        return await _wait_or_kill(process, stop, config.drain_seconds)

    await supervise(run, _NODE_RESTARTS, on_restart=_log_restart, stop=stop)
    return 0


def reach_server(config: WorkerConfig) -> None:
    """Raise as `check_server`, and `ServerUnavailable` if the server does not respond."""

    async def reach() -> None:
        client = _client(config)
        try:
            await _check(client)
        finally:
            await client.close()

    asyncio.run(reach())


def check_server(config: WorkerConfig) -> None:
    """Raise `Forbidden` or `ServerRefused` if the server will not accept a worker of this configuration."""

    async def check() -> None:
        await (await _checked_client(config)).close()

    asyncio.run(check())


def _client(config: WorkerConfig, transport: httpx.AsyncBaseTransport | None = None) -> LeaseClient:
    auth = _auth(config)
    requests = HttpTransport(
        config.server,
        config.api_key if auth is None else None,
        patience_seconds=_PATIENCE_SECONDS,
        transport=transport,
        auth=auth,
        outages=OutageLog(config.server),
        waits_for_storage=True,
    )
    return LeaseClient(requests)


async def _checked_client(config: WorkerConfig) -> LeaseClient:
    client = _client(config)
    try:
        with suppress(ServerUnavailable):  # logged as an outage; the model loads meanwhile
            await _check(client)
    except DiffuserveError:
        await client.close()
        raise
    return client


async def _run(config: WorkerConfig, fetch_adapter: FetchAdapter) -> int:
    async with open_agent(config, fetch_adapter) as agent:
        call_on_stop_signals(agent.drain)
        return await agent.run()


def _auth(config: WorkerConfig) -> httpx.Auth | None:
    """Return what adds a key to requests that the configuration does not hold itself."""
    if config.parent_fd is not None:
        return Parent(config.parent_fd)
    return None if config.api_key_file is None else KeyFile(config.api_key_file)


async def _check(client: LeaseClient) -> None:
    """Raise `Forbidden` or `ServerRefused` if the server refuses this worker, or `ServerUnavailable`."""
    try:
        await client.check()
    except (Unauthorized, Forbidden) as error:
        raise Forbidden(with_key_remedy(error)) from error
    except ServerRefused as error:
        remedy = "give the control plane's URL with --server or DIFFUSERVE_SERVER"
        raise ServerRefused(f"{error}; {remedy}") from error


async def _run_node(config: WorkerConfig) -> int:
    stop = asyncio.Event()
    call_on_stop_signals(stop.set)
    return await keep_ranks(config, stop)


def _log_restart(code: int, pause_seconds: float) -> None:
    log.warning(
        "the ranks of this node ended (exit code %d); they start again in %.0f s", code, pause_seconds
    )


async def _wait_or_kill(
    process: asyncio.subprocess.Process, stop: asyncio.Event, drain_seconds: float
) -> int:
    """Wait until `process` ends, killing it `drain_seconds` after `stop` is set. Return its exit code.

    Until then the first node may drain: it ends the ranks of all.
    """
    ended = asyncio.ensure_future(process.wait())
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({ended}, timeout=drain_seconds)
    finally:
        stopped.cancel()
        with suppress(ProcessLookupError):  # it may have ended just now, unknown to `ended`
            if not ended.done():
                process.kill()
    return await ended
