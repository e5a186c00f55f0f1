"""Facts of the services that a server needs, and of a server that was named."""

import asyncio
import time

from diffuserve.cli.client.connect import connect
from diffuserve.cli.doctor.facts import DatabaseFacts, PlaceFacts, ServerFacts
from diffuserve.domain.errors import DiffuserveError, Forbidden, ServerUnavailable, Unauthorized
from diffuserve.domain.extras import Extra, missing_module
from diffuserve.sdk.async_client import AsyncClient
from diffuserve.settings import Settings

_PATIENCE_SECONDS = 10.0


async def store_facts(
    settings: Settings,
) -> tuple[DatabaseFacts | None, PlaceFacts | None, PlaceFacts | None]:
    """Return the facts of database, bucket and Valkey; none where a server's packages are not installed."""
    if missing_module(Extra.SERVER) is not None:
        return None, None, None
    return await asyncio.gather(database_facts(settings), bucket_facts(settings), valkey_facts(settings))


async def database_facts(settings: Settings) -> DatabaseFacts:
    """Read the revision and the clock of the database; build nothing."""
    from sqlalchemy import make_url

    from diffuserve.jobs.database.migrate import HEAD

    file = settings.database_file
    if file is not None and not file.exists():
        return DatabaseFacts(place=str(file), head=HEAD)
    place = str(file or make_url(settings.store_url).render_as_string(hide_password=True))
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            return await _read_database(settings, place)
    except TimeoutError:
        return DatabaseFacts(place=place, problem=f"{place} did not respond within {_PATIENCE_SECONDS:g} s")
    except DiffuserveError as error:
        return DatabaseFacts(place=place, problem=str(error))


async def bucket_facts(settings: Settings) -> PlaceFacts | None:
    """Store, find and delete a tiny file; `None` if files are kept in the data folder."""
    if settings.artifacts_url is None:
        return None
    from diffuserve.storage.opening import open_artifacts
    from diffuserve.storage.probe import probe

    try:
        await probe(open_artifacts(settings.files_url, settings.data_access))
    except (DiffuserveError, OSError) as error:
        return PlaceFacts(place=settings.artifacts_url, problem=str(error))
    return PlaceFacts(place=settings.artifacts_url)


async def valkey_facts(settings: Settings) -> PlaceFacts | None:
    """Ping Valkey; `None` if there is none in the settings."""
    if settings.bus_url is None:
        return None
    from redis.asyncio import Redis
    from redis.exceptions import RedisError

    place = settings.bus_url.rpartition("@")[2].rpartition("//")[2]
    valkey = Redis.from_url(settings.bus_url, socket_connect_timeout=_PATIENCE_SECONDS)
    try:
        await valkey.execute_command("PING")  # type: ignore[no-untyped-call]
    except (RedisError, OSError) as error:
        return PlaceFacts(place=place, problem=f"{place} does not respond ({error})")
    finally:
        await valkey.aclose()
    return PlaceFacts(place=place)


async def server_facts(settings: Settings) -> ServerFacts | None:
    """Ask the server that was named with an option or a variable; `None` if none was."""
    if "server" not in settings.model_fields_set:
        return None
    async with connect(settings) as client:
        try:
            return await _ask(client)
        except DiffuserveError as error:
            return ServerFacts(url=settings.server, problem=str(error))


async def _ask(client: AsyncClient) -> ServerFacts:
    ahead, key_problem = await client.server_time() + 0.5 - time.time(), ""  # the header has whole seconds
    try:
        await client.models()
    except (Unauthorized, Forbidden) as error:
        key_problem = str(error)
    return ServerFacts(
        url=client.server,
        key_problem=key_problem,
        waits_for=await _wait_reason(client),
        ahead_seconds=ahead,
    )


async def _wait_reason(client: AsyncClient) -> str:
    try:
        await client.check_ready()
    except ServerUnavailable as error:
        return str(error)
    return ""


async def _read_database(settings: Settings, place: str) -> DatabaseFacts:
    from sqlalchemy.exc import SQLAlchemyError

    from diffuserve.jobs.database.connections import Database
    from diffuserve.jobs.database.migrate import HEAD, read_revision

    database = Database(settings.store_url, settings.store_config)
    try:
        await database.look(read_revision)  # connecting takes a while, which the clock is compared without
        before = time.time()
        revision, now = await database.look(read_revision)
        ahead = now - (before + time.time()) / 2
    except (SQLAlchemyError, OSError) as error:
        problem = str(getattr(error, "orig", None) or error).partition("\n")[0]
        return DatabaseFacts(place=place, problem=f"{place}: {problem}")
    finally:
        await database.close()
    is_elsewhere = settings.database_file is None
    return DatabaseFacts(
        place=place, revision=revision, head=HEAD, ahead_seconds=ahead if is_elsewhere else None
    )
