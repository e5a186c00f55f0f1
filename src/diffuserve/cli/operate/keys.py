"""`diffuserve keys`: API keys of a server."""

import asyncio
import json
from dataclasses import asdict, fields
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.table import Table

from diffuserve.cli import options
from diffuserve.cli.display.console import Console
from diffuserve.cli.display.echo import echo
from diffuserve.cli.display.results import results
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.tenant import ApiKey, Plan, PlanOverrides, Role
from diffuserve.settings import Settings

EXAMPLES = """
Examples:

  diffuserve keys create --tenant studio --plan pro

  diffuserve keys create --role worker --database-url postgresql://diffuserve@db/diffuserve
"""

_DAY = 86_400.0

keys = typer.Typer(
    name="keys", help="API keys, directly in the server's database.", epilog=EXAMPLES, no_args_is_help=True
)


@keys.command(epilog=EXAMPLES)
@options.takes_settings("data_dir", "database_url")
def create(  # noqa: PLR0913 (a command has as many arguments as options)
    settings: Settings,
    role: Annotated[Role, typer.Option(help="Role that the key gives.")] = Role.TENANT,
    tenant: Annotated[str | None, typer.Option(help="Tenant of a key with the role tenant.")] = None,
    plan: Annotated[str | None, typer.Option(help="Plan of the tenant from now on.")] = None,
    weight: Annotated[float | None, typer.Option(help="Share of the tenant, in place of its plan's.")] = None,
    max_running: Annotated[
        int | None, typer.Option(help="Running jobs at a time, in place of its plan's.")
    ] = None,
    max_queued: Annotated[
        int | None, typer.Option(help="Queued jobs at a time, in place of its plan's.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Create a key. Its secret goes to stdout, once: only a hash of it is stored."""
    overrides = PlanOverrides(weight=weight, max_running=max_running, max_queued=max_queued)
    _check(settings, role, tenant, plan, overrides)
    has_overrides = overrides != PlanOverrides()
    key, secret, is_first = asyncio.run(
        _create(settings, role, tenant, plan, overrides if has_overrides else None)
    )
    echo(json.dumps({**_as_dict(key), "secret": secret}) if as_json else secret)
    if is_first:
        Console(stderr=True).print(
            "This is the first key. A server that runs without keys requires them from now on, "
            "but for one that was started with --no-auth.",
            style="yellow",
        )


def _check(
    settings: Settings, role: Role, tenant: str | None, plan: str | None, overrides: PlanOverrides
) -> None:
    """Raise `InvalidParams` for a combination of options that makes no key."""
    _check_role(role, tenant, has_limits=plan is not None or overrides != PlanOverrides())
    plans = settings.store_config.plans
    if plan is not None and plan not in plans:
        raise InvalidParams("plan", plan, f"known plans: {', '.join(plans)}")
    for name, value in asdict(overrides).items():
        if value is not None and not value > 0:
            raise InvalidParams(name, value, "must be positive")


def _check_role(role: Role, tenant: str | None, has_limits: bool) -> None:
    """Raise `InvalidParams` unless a tenant is named for a tenant's key, and for no other."""
    if role is Role.TENANT and not (tenant or "").strip():
        raise InvalidParams("tenant", tenant, "a tenant's key needs a name: --tenant NAME")
    if role is not Role.TENANT and (tenant or has_limits):
        raise InvalidParams("role", role.value, "only a tenant's key has a tenant, a plan or caps")


async def _create(
    settings: Settings, role: Role, tenant: str | None, plan: str | None, overrides: PlanOverrides | None
) -> tuple[ApiKey, str, bool]:
    from diffuserve.wiring.control import open_store

    async with open_store(settings) as store:
        is_first = not await store.keys.has_key()
        key, secret = await store.keys.create(role, tenant_id=tenant, plan=plan, overrides=overrides)
    return key, secret, is_first


@keys.command("list")
@options.takes_settings("data_dir", "database_url")
def list_keys(settings: Settings, as_json: options.Json = False) -> None:
    """List the keys, without their secrets, and the plans of their tenants."""
    listed = asyncio.run(_list(settings))
    if as_json:
        echo(json.dumps([_listed_as_dict(key, plan, settings) for key, plan in listed], indent=2))
        return
    table = Table("id", "role", "tenant", "plan", "created", "revoked", box=None, header_style="bold")
    for key, plan in listed:
        times = _time(key.created_at), _time(key.revoked_at)
        table.add_row(key.id, key.role, key.tenant_id or "", _plan_text(plan, settings), *times)
    results().print(table)


async def _list(settings: Settings) -> list[tuple[ApiKey, Plan | None]]:
    """Return the keys, each with its tenant's plan if it has a tenant."""
    from diffuserve.wiring.control import open_store

    async with open_store(settings) as store:
        keys = await store.keys.list_keys()
        tenants = await store.operations.tenants({key.tenant_id for key in keys if key.tenant_id})
    plans = {tenant.id: tenant.plan for tenant in tenants}
    return [(key, plans.get(key.tenant_id or "")) for key in keys]


def _plan_text(plan: Plan | None, settings: Settings) -> str:
    """Return the name of a plan, with the tenant's own limits, such as `pro (max_running 3)`."""
    if plan is None:
        return ""
    own = ", ".join(f"{name} {value:g}" for name, value in _own_limits(plan, settings).items())
    return f"{plan.name} ({own})" if own else plan.name


def _own_limits(plan: Plan, settings: Settings) -> dict[str, float]:
    """Return the limits of a tenant that differ from those of its plan."""
    usual = settings.store_config.plan(plan.name)
    names = [declared.name for declared in fields(PlanOverrides)]
    return {name: getattr(plan, name) for name in names if getattr(plan, name) != getattr(usual, name)}


def _listed_as_dict(key: ApiKey, plan: Plan | None, settings: Settings) -> dict[str, Any]:
    plan_name, overrides = (plan.name, _own_limits(plan, settings)) if plan else (None, {})
    return {**_as_dict(key), "plan": plan_name, "overrides": overrides}


@keys.command(epilog="Example:\n\n  diffuserve keys rotate ID --overlap-seconds 3600")
@options.takes_settings("data_dir", "database_url")
def rotate(
    settings: Settings,
    key_id: Annotated[str, typer.Argument(metavar="ID", help="Id that `diffuserve keys list` shows.")],
    overlap_seconds: Annotated[
        float, typer.Option(min=0, help="Seconds that the old key stays valid beside the new one.")
    ] = _DAY,
    as_json: options.Json = False,
) -> None:
    """Replace a key by one for the same role and tenant, whose secret goes to stdout, once.

    Both are valid for a while, so that the owner changes the key without a pause.
    """
    key, secret = asyncio.run(_rotate(settings, key_id, overlap_seconds))
    echo(json.dumps({**_as_dict(key), "secret": secret}) if as_json else secret)
    told = f"{key_id} is valid for {overlap_seconds:g} s more, {key.id} from now on"
    Console(stderr=True).print(told, highlight=False)


async def _rotate(settings: Settings, key_id: str, overlap_seconds: float) -> tuple[ApiKey, str]:
    from diffuserve.wiring.control import open_store

    async with open_store(settings) as store:
        return await store.keys.rotate(key_id, overlap_seconds)


@keys.command("rotate-url-secret", epilog="Example:\n\n  diffuserve keys rotate-url-secret")
@options.takes_settings("data_dir", "database_url")
def rotate_url_secret(
    settings: Settings,
    overlap_seconds: Annotated[
        float, typer.Option(min=0, help="Seconds that URLs signed before stay valid, at most; 0 for none.")
    ] = _DAY,
) -> None:
    """Sign URLs of results with a new secret; running servers do so within seconds."""
    asyncio.run(_rotate_url_secret(settings, overlap_seconds))
    Console(stderr=True, highlight=False).print(
        f"URLs have a new secret from now on; those signed before expire within {overlap_seconds:g} s"
    )


async def _rotate_url_secret(settings: Settings, overlap_seconds: float) -> None:
    from diffuserve.wiring.control import open_store

    async with open_store(settings) as store:
        await store.url_secrets.rotate(overlap_seconds)


@keys.command(epilog="Example:\n\n  diffuserve keys revoke ID")
@options.takes_settings("data_dir", "database_url")
def revoke(
    settings: Settings,
    key_id: Annotated[str, typer.Argument(metavar="ID", help="Id that `diffuserve keys list` shows.")],
) -> None:
    """Revoke a key; requests with it are refused from then on."""
    is_last = asyncio.run(_revoke(settings, key_id))
    console = Console(stderr=True, highlight=False)
    console.print(f"revoked {key_id}")
    if is_last:
        console.print(
            "This was the last valid key. The server stays closed: it refuses every request until you create "
            "another key with `diffuserve keys create`, unless it is started with --no-auth.",
            style="yellow",
        )


async def _revoke(settings: Settings, key_id: str) -> bool:
    """Revoke the key; return whether no valid one is left."""
    from diffuserve.wiring.control import open_store

    async with open_store(settings) as store:
        await store.keys.revoke(key_id)
        return not await store.keys.has_valid_key()


def _as_dict(key: ApiKey) -> dict[str, str | None]:
    return {
        "id": key.id,
        "role": key.role,
        "tenant": key.tenant_id,
        "created_at": _time(key.created_at),
        "revoked_at": _time(key.revoked_at) or None,
    }


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
