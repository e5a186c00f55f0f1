"""`diffuserve models`: models of a model store, published by name and hash."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from rich.table import Table

from diffuserve.cli import options
from diffuserve.cli.display.console import Console
from diffuserve.cli.display.echo import echo
from diffuserve.cli.display.results import results
from diffuserve.cli.display.sizes import human_bytes
from diffuserve.cli.exit_codes import FAILED
from diffuserve.cli.store.models import Known, list_models
from diffuserve.cli.store.transfers import transfers
from diffuserve.domain.errors import InvalidModel, InvalidParams, ModelNotFound
from diffuserve.engine_process.model.prepared_model import load_options
from diffuserve.models.folders.folder import open_model
from diffuserve.modelstore.bucket import ModelBucket, Version, open_models
from diffuserve.modelstore.description import describe, published_files
from diffuserve.modelstore.manifest import Manifest, parse_reference
from diffuserve.modelstore.prepared_copies import make_copy
from diffuserve.modelstore.publishing import collect_garbage, verify
from diffuserve.modelstore.publishing import push as push_model
from diffuserve.modelstore.publishing import remove as remove_model
from diffuserve.modelstore.store import ModelStore, open_stored
from diffuserve.settings import Settings

EXAMPLES = """
Examples:

  diffuserve models push /models/FLUX.1-schnell --name flux-schnell --license apache-2.0 --model-store s3://models

  diffuserve models list --model-store s3://models

  diffuserve models pull flux-schnell --model-store s3://models

  diffuserve models verify flux-schnell --model-store s3://models

  diffuserve models prepare flux-schnell --quantization int8

  diffuserve models remove flux-schnell@741f7c3ce8b3 --model-store s3://models

  diffuserve models gc --model-store s3://models
"""

models = typer.Typer(
    name="models",
    help="Models in a bucket, by name and hash; without a command the models on this machine.",
    epilog=EXAMPLES,
)

Name = Annotated[
    str, typer.Argument(metavar="NAME[@HASH]", help="Name in the store; a hash means one version.")
]


@models.callback(invoke_without_command=True)
def on_this_machine(context: typer.Context, as_json: options.Json = False, known: Known = False) -> None:
    """Publish, fetch and check models of a store; without a command list those on this machine."""
    if context.invoked_subcommand is None:
        list_models(as_json, known)


@models.command(epilog=EXAMPLES)
@options.takes_settings("model_store")
def push(
    settings: Settings,
    model: Annotated[str, typer.Argument(help="Folder, bundled model, short name or hub id to publish.")],
    name: Annotated[str | None, typer.Option(help="Name in the store. [default: the model's own]")] = None,
    license_: Annotated[str, typer.Option("--license", help="License, for people to read.")] = "",
    source: Annotated[str, typer.Option(help="Where the model is from, for people to read.")] = "",
) -> None:
    """Publish a model; workers find it by its name once everything is there.

    NAME@HASH goes to stdout. The same command continues a push that broke off.
    """
    bucket, console = _bucket(settings), _console()
    found = open_model(model)
    parse_reference(name or found.name)  # before anything is read
    size = sum(path.stat().st_size for path in published_files(found.path))
    with transfers(console) as shown:
        report = shown.begin("reading", size)
        manifest = describe(found.path, name or found.name, license_, source or found.hub_id or "", report)
        push_model(bucket, found.path, manifest, shown.begin("pushing", size))
    console.print(f"{manifest.name}: {human_bytes(size)} in {bucket.place}")
    echo(manifest.reference)


@models.command(epilog=EXAMPLES)
@options.takes_settings(*options.MODEL_STORE_OPTIONS)
def pull(settings: Settings, name: Name) -> None:
    """Fetch a model into this machine's cache, verified, so that workers start without a download.

    Its folder goes to stdout.
    """
    _bucket(settings)
    with transfers(_console()) as shown:
        store = ModelStore(settings.engine_process.stored)
        held = store.open(name, lambda found: shown.begin(found.name, found.num_bytes))
    echo(held.folder)


@models.command(epilog=EXAMPLES)
@options.takes_settings("device", "dtype", "quantization", *options.MODEL_STORE_OPTIONS)
def prepare(
    settings: Settings,
    model: Annotated[str, typer.Argument(help="Name in the store, folder, bundled model or hub id.")],
) -> None:
    """Write a copy of a model's weights as engines have them in memory, into this machine's cache.

    Engines of the same device, dtype and quantization map it: they start without work on the weights, and
    share the memory. Its folder goes to stdout.
    """
    config, console = replace(settings.engine_process, model=model), _console()
    with transfers(console) as shown:
        held = open_stored(model, config.stored, lambda found: shown.begin(found.name, found.num_bytes))
    if held is not None:
        config = replace(config, model=str(held.folder))
    with console.status(f"preparing {model}"):
        copy = make_copy(load_options(config), config.stored)
    size = sum(file.stat().st_size for file in copy.folder.iterdir())
    console.print(f"{model}: {human_bytes(size)} as engines map them")
    echo(copy.folder)


@models.command("list", epilog=EXAMPLES)
@options.takes_settings("model_store")
def list_stored(settings: Settings, as_json: options.Json = False) -> None:
    """List the models of a store, the versions of each with the newest last, which its name means.

    Where no store is named, list the models on this machine, as `diffuserve list` does.
    """
    if settings.engine_process.stored.model_store is None:
        list_models(as_json)
        return
    bucket, console = _bucket(settings), _console()
    found = list[tuple[Version, Manifest]]()
    for version in sorted(bucket.versions(), key=lambda version: (version.name, version)):
        try:
            found.append((version, bucket.manifest(version.hash)))
        except (InvalidModel, ModelNotFound) as error:
            console.print(f"{version.reference}: {error}", style="yellow")
    if as_json:
        echo(json.dumps([_as_dict(*entry) for entry in found], indent=2))
    else:
        results().print(_table(found))


@models.command("verify", epilog=EXAMPLES)
@options.takes_settings("model_store")
def verify_stored(settings: Settings, name: Name) -> None:
    """Read every byte of a model in the store, and compare it with its hashes; exit code 1: damage."""
    bucket, console = _bucket(settings), _console()
    manifest = bucket.manifest(bucket.find(parse_reference(name)).hash)
    with transfers(console) as shown:
        damages = verify(bucket, manifest, shown.begin(manifest.name, manifest.num_bytes))
    for damage in damages:
        console.print(f"{damage.path}, from byte {damage.offset:,} on: {damage.problem}")
    if damages:
        console.print(f"{manifest.reference} is damaged: remove it, and push it again", style="red")
        raise typer.Exit(FAILED)
    console.print(f"{manifest.reference} is sound")


@models.command(epilog=EXAMPLES)
@options.takes_settings("model_store")
def remove(
    settings: Settings,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove it without asking.")] = False,
) -> None:
    """Remove a model from the store: all its versions, or NAME@HASH alone. Caches that have it keep it."""
    bucket, reference = _bucket(settings), parse_reference(name)
    newest = bucket.find(reference)
    versions = [newest] if reference.digits else bucket.versions(reference.name)
    shown = ", ".join(version.reference for version in versions)
    if not yes:
        if not sys.stdin.isatty():
            raise InvalidParams("yes", yes, f"nobody can be asked here; give --yes to remove {shown}")
        if not typer.confirm(f"Remove {shown} from {bucket.place}?", err=True):
            raise typer.Exit(FAILED)
    freed = sum(remove_model(bucket, version) for version in versions)
    _console().print(f"removed {shown}, {human_bytes(freed)} freed")


@models.command(epilog=EXAMPLES)
@options.takes_settings("model_store")
def gc(
    settings: Settings,
    older_than_hours: Annotated[
        float,
        typer.Option(min=1, help="Hours for which garbage has not been changed: a push under way is spared."),
    ] = 24.0,
) -> None:
    """Delete what belongs to no published model, such as what a push that broke off has left."""
    garbage = collect_garbage(_bucket(settings), datetime.now(UTC), timedelta(hours=older_than_hours))
    size = human_bytes(garbage.num_bytes)
    _console().print(f"deleted {len(garbage.keys)} objects, {size} freed")


def _bucket(settings: Settings) -> ModelBucket:
    if settings.engine_process.stored.model_store is None:
        raise InvalidParams(
            "model_store", None, "name a bucket: --model-store s3://bucket/prefix, or DIFFUSERVE_MODEL_STORE"
        )
    return open_models(settings.engine_process.stored.model_store)


def _console() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=True)


def _as_dict(version: Version, manifest: Manifest) -> dict[str, object]:
    return {
        "name": version.name,
        "hash": version.hash,
        "family": manifest.family,
        "bytes": manifest.num_bytes,
        "weights": manifest.weights_hash,
        "license": manifest.license,
        "source": manifest.source,
        "published_at": version.published_at.isoformat(),
    }


def _table(found: Sequence[tuple[Version, Manifest]]) -> Table:
    columns = ("name", "hash", "family", "size", "license", "source", "published")
    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for version, manifest in found:
        described = (manifest.license, manifest.source)
        published = f"{version.published_at:%Y-%m-%d %H:%M}"
        size = human_bytes(manifest.num_bytes)
        table.add_row(version.name, version.hash[:12], manifest.family, size, *described, published)
    return table
