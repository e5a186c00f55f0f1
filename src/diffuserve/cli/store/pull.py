"""`diffuserve pull`: the download of a model."""

import shutil
from pathlib import Path
from typing import Annotated

import typer

from diffuserve.cli.display.console import Console
from diffuserve.cli.display.echo import echo
from diffuserve.cli.display.sizes import human_bytes
from diffuserve.cli.exit_codes import INTERRUPTED
from diffuserve.cli.store.models import ModelName
from diffuserve.cli.store.transfers import transfers
from diffuserve.domain.errors import InvalidModel, InvalidParams, ModelNotFound
from diffuserve.models.bundled import bundled_models, missing_weights
from diffuserve.models.folders import hub
from diffuserve.models.folders.folder import find_local_model
from diffuserve.models.folders.names import HUB_COMMITS, full_name, is_hub_id
from diffuserve.models.registry import read_spec

EXAMPLES = """
Examples:

  diffuserve pull flux-schnell

  diffuserve pull black-forest-labs/FLUX.1-dev

  diffuserve pull owner/name --revision main
"""

_SPARE_BYTES = 1_000_000_000  # kept free for logs and images


def pull(
    model: ModelName,
    revision: Annotated[
        str | None,
        typer.Option(
            metavar="COMMIT|BRANCH|TAG",
            help="Version; by default the commit that diffuserve knows, else main.",
        ),
    ] = None,
) -> None:
    """Download a model from the hub, once: only what is read of it, into the hub's cache.

    A download that broke off continues where it was. The folder of the model goes to stdout. Gated models
    need your consent on their page, and a token: `hf auth login`, or HF_TOKEN.
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if (bundled := bundled_models().get(model)) is not None:
        if problem := missing_weights(bundled):
            raise InvalidModel(f"{model}: {problem}")
        console.print(f"{model} ships with diffuserve: there is nothing to download")
        echo(bundled)
        return
    repo_id, wanted = _repository(model, revision)
    folder = hub.cached_folder(repo_id, wanted) or _download(repo_id, wanted, console)
    console.print(
        f"{repo_id} is on this machine. Serve it: diffuserve serve --model {_name(model, repo_id, folder)}",
    )
    echo(folder)


def pull_if_missing(model: str) -> None:
    """Download a model of the hub that is not on this machine, with progress. Raise `ModelNotFound`."""
    if find_local_model(model) is None:
        repo_id, revision = _repository(model, None)
        _download(repo_id, revision, Console(stderr=True, highlight=False, soft_wrap=True))


def _repository(model: str, revision: str | None) -> tuple[str, str]:
    """Return the repository to download and its revision. Raise `InvalidParams` or `ModelNotFound`."""
    repo_id, _, commit = full_name(model).partition("@")
    if not is_hub_id(repo_id):
        raise ModelNotFound(
            f"no model {model!r} to download: give a short name such as flux-schnell, or a hub id"
        )
    if commit and revision:
        raise InvalidParams("revision", revision, f"the model already names {commit}; give one of them")
    return repo_id, commit or revision or HUB_COMMITS.get(repo_id) or "main"


def _download(repo_id: str, revision: str, console: Console) -> Path:
    """Check what can be checked before the weights, then download them."""
    with console.status(f"asking the hub for {repo_id}"):
        download = hub.plan_download(repo_id, revision)
    size, missing = human_bytes(download.num_bytes), human_bytes(download.missing_bytes)
    console.print(
        f"{repo_id} at {download.commit}: {len(download.files)} files, {size}; {missing} to download",
    )
    _check_space(download)
    read_spec(str(hub.fetch_configs(download)))  # refuses another kind of model before its weights arrive
    try:
        with transfers(console) as shown:
            done = download.num_bytes - download.missing_bytes  # a part that was here before counts
            return hub.fetch_all(download, shown.begin(repo_id, download.num_bytes, done))
    except KeyboardInterrupt:
        console.print("stopped; the same command continues where it was")
        raise typer.Exit(INTERRUPTED) from None


def _check_space(download: hub.Download) -> None:
    """Raise `InvalidParams` if the disk has too little space for what is missing."""
    cache = hub.cache_folder()
    existing = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if download.missing_bytes and free < download.missing_bytes + _SPARE_BYTES:
        raise InvalidParams(
            "model",
            download.repo_id,
            f"needs {human_bytes(download.missing_bytes)}, and {existing} has {human_bytes(free)} free; "
            "free some (`diffuserve list` shows the models, `diffuserve rm` removes one), or move the hub's "
            "cache with HF_HOME",
        )


def _name(model: str, repo_id: str, folder: Path) -> str:
    """Return how the model is named from now on: as it was given, where that means this commit."""
    if HUB_COMMITS.get(repo_id) == folder.name or hub.cached_commits(repo_id) == [folder.name]:
        return model.partition("@")[0]
    return f"{repo_id}@{folder.name}"
