"""`diffuserve adapters`: adapters (LoRA) of a store, for everyone or for one tenant."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from diffuserve.cli import options
from diffuserve.cli.display.console import Console
from diffuserve.cli.display.echo import echo
from diffuserve.cli.display.results import print_facts, results
from diffuserve.cli.display.sizes import human_bytes
from diffuserve.cli.exit_codes import FAILED
from diffuserve.cli.store.adapter_sources import adapter_file
from diffuserve.cli.store.transfers import transfers
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.models.adapter_entry import AdapterEntry
from diffuserve.domain.requests.adapter_use import ADAPTER_NAME
from diffuserve.models.bundled import bundled_adapters
from diffuserve.models.folders.folder import open_model
from diffuserve.modelstore.adapters.adapter_bucket import AdapterBucket, open_adapters
from diffuserve.modelstore.adapters.adapter_store import AdapterStore
from diffuserve.modelstore.adapters.describe import describe_adapter
from diffuserve.private_files import make_private_folder, private_umask
from diffuserve.settings import Settings

EXAMPLES = """
Examples:

  diffuserve adapters push ink.safetensors

  diffuserve adapters push ink.safetensors --name acme-ink --model flux-dev --tenant acme

  diffuserve adapters push hf://owner/name/ink.safetensors --adapter-store s3://adapters

  diffuserve adapters list

  diffuserve adapters show ink

  diffuserve adapters pull ink

  diffuserve adapters remove ink --yes
"""

adapters = typer.Typer(
    name="adapters",
    help="Adapters (LoRA) that requests name, in a bucket or in a server's data folder.",
    epilog=EXAMPLES,
    no_args_is_help=True,
)

_PLACES = ("adapter_store", "model_store", "data_dir")
Name = Annotated[str, typer.Argument(help="Name in the store.")]
Tenant = Annotated[
    str | None, typer.Option(help="Tenant whose adapter it is, and who alone sees it. [default: everyone]")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Remove it without asking.")]


@adapters.command(epilog=EXAMPLES)
@options.takes_settings(*_PLACES)
def push(
    settings: Settings,
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A .safetensors file: of this machine, hf://OWNER/NAME[/FILE] of the hub, or of a bucket, "
            "s3://… or gs://….",
        ),
    ],
    name: Annotated[
        str | None, typer.Option(help="Name that requests give. [default: the file's own]")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Model of this machine that must have the adapter's layers, in its shapes."),
    ] = None,
    tenant: Tenant = None,
) -> None:
    """Give an adapter a name, for which a server's requests may ask at once.

    What cannot be applied is refused before, by the name of a tensor. A name that there is means the new file
    from now on; jobs that were accepted keep the earlier one. The name goes to stdout.
    """
    console = _console()
    with _opened(settings) as bucket, transfers(console) as shown:
        base = None if model is None else open_model(model)
        with adapter_file(source, shown.begin) as path:
            entry = describe_adapter(path, _name(name, path), tenant, base)
            bucket.publish(entry, path, shown.begin("pushing", entry.num_bytes))
            bucket.sweep()
    families = " or ".join(entry.families)
    console.print(
        f"{entry.name}: {human_bytes(entry.num_bytes)}, rank {entry.rank}, {entry.num_layers} layers of "
        f"{entry.model or families}, in {bucket.place}"
    )
    echo(entry.name)


@adapters.command(epilog=EXAMPLES)
@options.takes_settings("data_dir", *options.MODEL_STORE_OPTIONS)
def pull(settings: Settings, name: Name, tenant: Tenant = None) -> None:
    """Fetch an adapter into this machine's cache, verified. Its file goes to stdout."""
    with _opened(settings) as bucket:
        entry = bucket.get(tenant, name)
        with _console().status(f"fetching {entry.name}, {human_bytes(entry.num_bytes)}"):
            stored = settings.with_adapter_store().engine_process.stored
            path = AdapterStore(stored).fetch(entry.digest)
    echo(path)


@adapters.command("list", epilog=EXAMPLES)
@options.takes_settings(*_PLACES, "adapter_files")
def list_adapters(settings: Settings, as_json: options.Json = False, tenant: Tenant = None) -> None:
    """List adapters: a store's, everyone's first, then those that ship with models, and --adapter-files.

    With --tenant the store's are those that it may ask for.
    """
    with _opened(settings) as bucket:
        stored = bucket.all_entries()
    found = [(entry, "store") for entry in stored if tenant is None or entry.tenant in (None, tenant)]
    found += [
        (replace(_described(path, name), model=model), "model")
        for model, files in bundled_adapters().items()
        for name, path in files.items()
    ]
    own: Mapping[str, str] = settings.engine_process.adapter_files
    found += [(_described(Path(path), name), "file") for name, path in own.items()]
    if as_json:
        echo(json.dumps([{**asdict(entry), "origin": origin} for entry, origin in found], indent=2))
    else:
        results().print(_table(found))


@adapters.command(epilog=EXAMPLES)
@options.takes_settings(*_PLACES)
def show(settings: Settings, name: Name, as_json: options.Json = False, tenant: Tenant = None) -> None:
    """Show what is known of an adapter."""
    with _opened(settings) as bucket:
        entry = bucket.get(tenant, name)
    if as_json:
        echo(json.dumps(asdict(entry), indent=2))
        return
    print_facts(
        {
            "name": entry.name,
            "tenant": entry.tenant or "everyone",
            "families": ", ".join(entry.families),
            "checked with": entry.model or "no model",
            "rank": str(entry.rank),
            "layers": str(entry.num_layers),
            "size": human_bytes(entry.num_bytes),
            "SHA-256": entry.digest,
            "pushed": _time(entry),
        }
    )


@adapters.command(epilog=EXAMPLES)
@options.takes_settings(*_PLACES)
def remove(settings: Settings, name: Name, yes: Yes = False, tenant: Tenant = None) -> None:
    """Remove the name of an adapter. Jobs that were accepted with it keep its file, for up to 30 days."""
    with _opened(settings) as bucket:
        entry = bucket.get(tenant, name)
        if not yes:
            if not sys.stdin.isatty():
                raise InvalidParams("yes", yes, f"nobody can be asked here; give --yes to remove {name}")
            if not typer.confirm(f"Remove {name} from {bucket.place}?", err=True):
                raise typer.Exit(FAILED)
        bucket.remove(entry)
        bucket.sweep()
    _console().print(f"removed {name}")


@contextmanager
def _opened(settings: Settings) -> Iterator[AdapterBucket]:
    """Yield the store of the settings, or else the one in the data folder, for nobody else to read."""
    if settings.engine_process.stored.adapters_url is None:
        make_private_folder(settings.data_dir, settings.data_access)
    url = settings.with_adapter_store().engine_process.stored.adapters_url
    assert url is not None
    with private_umask(settings.data_access):
        yield open_adapters(url)


def _name(name: str | None, path: Path) -> str:
    if name is not None and not ADAPTER_NAME.fullmatch(name):
        raise InvalidParams("name", name, "must be a name of letters, digits, '.', '_' and '-'")
    if name is None and not ADAPTER_NAME.fullmatch(path.stem):
        raise InvalidParams("name", path.stem, "is no name of an adapter; give one with --name")
    return name or path.stem


def _described(path: Path, name: str) -> AdapterEntry:
    """Return the entry of a file that is in no store, as old as the file is."""
    return replace(describe_adapter(path, name), created_at=path.stat().st_mtime)


def _console() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=True)


def _time(entry: AdapterEntry) -> str:
    return f"{datetime.fromtimestamp(entry.created_at, UTC):%Y-%m-%d %H:%M}"


def _table(found: Sequence[tuple[AdapterEntry, str]]) -> Table:
    columns = ("name", "from", "tenant", "for", "rank", "layers", "size", "hash", "time")
    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for entry, origin in found:
        made_for = entry.model or " ".join(entry.families)
        numbers = (str(entry.rank), str(entry.num_layers), human_bytes(entry.num_bytes))
        whose = (origin, entry.tenant or "everyone", made_for)
        table.add_row(entry.name, *whose, *numbers, entry.digest[:12], _time(entry))
    return table
