"""`diffuserve db`: the database behind a server."""

import asyncio

import typer

from diffuserve.cli import options
from diffuserve.cli.display.console import Console
from diffuserve.settings import Settings

db = typer.Typer(name="db", help="The server's database.", no_args_is_help=True)


@db.callback()
def root() -> None:
    """Keep `upgrade` a subcommand while it is the only one."""


@db.command(epilog="Example:\n\n  diffuserve db upgrade --database-url postgresql://diffuserve@db/diffuserve")
@options.takes_settings("data_dir", "database_url")
def upgrade(settings: Settings) -> None:
    """Bring the schema up to date. A server does so by itself when it starts."""
    asyncio.run(_upgrade(settings))
    Console(stderr=True).print("the schema is up to date", highlight=False)


async def _upgrade(settings: Settings) -> None:
    from diffuserve.wiring.control import open_store

    async with open_store(settings):
        pass
