"""`diffuserve pull`: the download of a model."""

import re
import shutil
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from diffuserve.cli.display.console import Console
from diffuserve.cli.display.echo import echo
from diffuserve.cli.display.sizes import human_bytes
from diffuserve.cli.exit_codes import FAILED, INTERRUPTED
from diffuserve.cli.store.import_model import Base, import_file
from diffuserve.cli.store.models import ModelName
from diffuserve.cli.store.transfers import transfers
from diffuserve.domain.errors import InvalidModel, InvalidParams, ModelNotFound
from diffuserve.models.bundled import bundled_models, missing_weights
from diffuserve.models.checkpoint_files.open_checkpoint import check_suffix
from diffuserve.models.folders import hub
from diffuserve.models.folders.folder import find_local_model
from diffuserve.models.folders.known_models import known_model, nearest_known
from diffuserve.models.folders.local_models import check_new_name
from diffuserve.models.folders.names import HUB_COMMITS, full_name, is_hub_id
from diffuserve.models.registry import read_spec

EXAMPLES = """
Examples:

  diffuserve pull flux-schnell

  diffuserve pull flux-dev --yes

  diffuserve pull flux-dev --parts vae,text_encoder,text_encoder_2

  diffuserve pull owner/name:model.safetensors --as my-model

  diffuserve pull owner/name --revision main
"""

_SPARE_BYTES = 1_000_000_000  # kept free for logs and images
_ADDRESS = re.compile(
    r"https://(?:huggingface\.co|hf\.co)/([^/]+/[^/]+)/(?:resolve|blob)/([^/]+)/([^?#]+)(?:\?.*)?"
)


def pull(
    model: ModelName,
    revision: Annotated[
        str | None,
        typer.Option(
            metavar="COMMIT|BRANCH|TAG",
            help="Version; by default the commit that diffuserve knows, else main.",
        ),
    ] = None,
    parts: Annotated[
        str | None,
        typer.Option(
            metavar="PART,…",
            help="Parts whose weights are downloaded, beside all configs and vocabularies: what a file to "
            "import lacks.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--as", metavar="NAME", help="Name of the model that a single file becomes."),
    ] = None,
    base: Base = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Accept the model's license without asking.")
    ] = False,
) -> None:
    """Download a model from the hub, once: only what is read of it, into the hub's cache.

    A download that broke off continues where it was. The folder of the model goes to stdout. Its license and
    size are shown first; a license that restricts what the images may be used for is accepted with --yes, or
    when it is asked for. Gated models need your consent on their page, and a token: `hf auth login`, or
    HF_TOKEN. A single file, OWNER/NAME:FILE or its address on the hub, is imported after the download.
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if (bundled := bundled_models().get(model)) is not None:
        if problem := missing_weights(bundled):
            raise InvalidModel(f"{model}: {problem}")
        console.print(f"{model} ships with diffuserve: there is nothing to download")
        echo(bundled)
    elif (file := _single_file(model, revision)) is not None:
        _pull_file(file, name, base, yes, console)
    elif name is not None:
        remedy = "names the model of a single file; pull OWNER/NAME:FILE.safetensors, or leave it out"
        raise InvalidParams("as", name, remedy)
    else:
        _pull_model(model, revision, None if parts is None else parts.split(","), yes, console)


def pull_if_missing(model: str) -> None:
    """Download a model of the hub that is not on this machine, with progress. Raise `ModelNotFound`."""
    if find_local_model(model) is None:
        repo_id, revision = _repository(model, None)
        _download(_planned(repo_id, revision, None, _console()), _console())


def _console() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=True)


def _pull_model(
    model: str, revision: str | None, parts: Collection[str] | None, yes: bool, console: Console
) -> None:
    repo_id, wanted = _repository(model, revision)
    folder = hub.cached_folder(repo_id, wanted)
    if folder is None:
        download = _planned(repo_id, wanted, parts, console)
        _accept_license(download, yes)
        folder = _download(download, console)
    if parts is None:
        named = _name(model, repo_id, folder)
        console.print(f"{repo_id} is on this machine. Serve it: diffuserve serve --model {named}")
    else:
        console.print(f"of {repo_id} these parts are on this machine: {', '.join(parts)}")
    echo(folder)


@dataclass(frozen=True)
class _SingleFile:
    """A file of a repository of the hub."""

    repo_id: str
    revision: str
    path: str


def _pull_file(file: _SingleFile, name: str | None, base: str | None, yes: bool, console: Console) -> None:
    """Download a single file, and import it. What can be refused is refused before."""
    check_suffix(Path(file.path))
    if name is None:
        raise InvalidParams("as", name, f"give a name to the model that {file.path} becomes: --as NAME")
    check_new_name(name)
    with console.status(f"asking the hub for {file.repo_id}"):
        download = hub.plan_file(file.repo_id, file.revision, file.path)
    _show(download, console)
    _accept_license(download, yes)
    _check_space(download)
    import_file(_fetched(download, console) / file.path, name, base)
    console.print(f"{file.path} stays in the hub's cache; `diffuserve rm {file.repo_id}` removes it")


def _single_file(model: str, revision: str | None) -> _SingleFile | None:
    """Return the file of the hub that is named by its path or its address; `None` for other models."""
    if address := _ADDRESS.fullmatch(model):
        return _SingleFile(address[1], revision or address[2], address[3])
    if "://" in model:
        raise ModelNotFound(
            f"{model[:200]}: only files of the hub are downloaded; download it yourself, and then "
            "`diffuserve import FILE --as NAME`"
        )
    repo, colon, path = model.partition(":")
    repo_id, _, commit = repo.partition("@")
    if not (colon and is_hub_id(repo_id)):
        return None
    return _SingleFile(repo_id, commit or revision or HUB_COMMITS.get(repo_id) or "main", path)


def _repository(model: str, revision: str | None) -> tuple[str, str]:
    """Return the repository to download and its revision. Raise `InvalidParams` or `ModelNotFound`."""
    repo_id, _, commit = full_name(model).partition("@")
    if not is_hub_id(repo_id):
        raise ModelNotFound(
            f"no model {model!r} to download: give a short name such as flux-schnell, or a hub id"
            f"{nearest_known(model)}"
        )
    if commit and revision:
        raise InvalidParams("revision", revision, f"the model already names {commit}; give one of them")
    return repo_id, commit or revision or HUB_COMMITS.get(repo_id) or "main"


def _planned(repo_id: str, revision: str, parts: Collection[str] | None, console: Console) -> hub.Download:
    """Return what is to be downloaded, and show it with its license."""
    with console.status(f"asking the hub for {repo_id}"):
        download = hub.plan_download(repo_id, revision)
    if parts is not None:
        known = {file.path.partition("/")[0] for file in download.files if "/" in file.path}
        if unknown := sorted(set(parts) - known):
            remedy = f"is no part of {repo_id}: {', '.join(sorted(known))}"
            raise InvalidParams("parts", unknown[0], remedy)
        download = hub.plan_parts(download, parts)
    _show(download, console)
    return download


def _show(download: hub.Download, console: Console) -> None:
    size, missing = human_bytes(download.num_bytes), human_bytes(download.missing_bytes)
    files = f"{len(download.files)} files" if len(download.files) > 1 else download.files[0].path
    console.print(f"{download.repo_id} at {download.commit}: {files}, {size}; {missing} to download")
    console.print(f"license: {_license(download)}")


def _license(download: hub.Download) -> str:
    known = known_model(download.repo_id)
    return known.license if known else download.license or f"unknown, see {download.repo_id} on the hub"


def _accept_license(download: hub.Download, yes: bool) -> None:
    """Ask for consent to a license that restricts uses. Raise `InvalidParams` where nobody can be asked."""
    known = known_model(download.repo_id)
    if yes or known is None or known.is_permissive or not download.missing_bytes:
        return
    if not sys.stdin.isatty():
        remedy = f"nobody can be asked here; give --yes to accept the {known.license} of {download.repo_id}"
        raise InvalidParams("yes", yes, remedy)
    if not typer.confirm(f"Do you accept the {known.license}?", err=True):
        raise typer.Exit(FAILED)


def _download(download: hub.Download, console: Console) -> Path:
    """Check what can be checked before the weights, then download them."""
    _check_space(download)
    read_spec(str(hub.fetch_configs(download)))  # refuses another kind of model before its weights arrive
    return _fetched(download, console)


def _fetched(download: hub.Download, console: Console) -> Path:
    try:
        with transfers(console) as shown:
            done = download.num_bytes - download.missing_bytes  # a part that was here before counts
            return hub.fetch_all(download, shown.begin(download.repo_id, download.num_bytes, done))
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
