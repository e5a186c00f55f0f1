"""Downloads from the Hugging Face hub: of what a pipeline reads alone, continued where they broke off.

The files are kept in the hub's own cache, where its other tools find them too. The hub's library starts a
file anew after an interruption; here the part that has arrived is kept, and the whole is compared with the
SHA-256 that the hub names.
"""

import errno
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from diffuserve.domain.errors import DiffuserveError, HubUnavailable, ModelNotFound
from diffuserve.domain.extras import Extra
from diffuserve.domain.text.nearest import did_you_mean
from diffuserve.domain.text.path_parts import SHA256
from diffuserve.models.folders.model_paths import INDEX_FILES
from diffuserve.models.folders.read_files import read_files

log = logging.getLogger(__name__)

_CONNECTIONS = 4
_LOG_SECONDS = 10.0
_WITHOUT_NETWORK = (
    "Without a network, download the model elsewhere and give its folder instead, for example "
    "--model /models/FLUX.1-schnell; the bundled model tiny-flux needs none"
)
_MAX_CHARACTERS = 200

Report = Callable[[int], None]
"""Receives the number of bytes that have arrived since it was last called; negative if some were lost."""


@dataclass(frozen=True)
class HubFile:
    """A file of a repository; one with a `sha256` is large, and kept in pieces while it arrives."""

    path: str
    num_bytes: int
    sha256: str | None


@dataclass(frozen=True)
class Download:
    """The files of a model at one commit, and how many of their bytes are not on this machine yet.

    `license` is what the repository says; others' text.
    """

    repo_id: str
    commit: str
    files: tuple[HubFile, ...]
    missing_bytes: int
    license: str | None = None

    @property
    def num_bytes(self) -> int:
        """Size of all files together."""
        return sum(file.num_bytes for file in self.files)


class LoggedProgress:
    """Report of a download in the log, from time to time. Several threads may call it."""

    def __init__(self, model: str, total_bytes: int, num_bytes: int = 0) -> None:
        """Report of a model with `total_bytes`, of which `num_bytes` are there before."""
        self._model, self._total_bytes, self._num_bytes = model, total_bytes, num_bytes
        self._lock = threading.Lock()
        self._log(time.monotonic())

    def __call__(self, num_bytes: int) -> None:
        with self._lock:
            self._num_bytes += num_bytes
            if (now := time.monotonic()) - self._logged_at >= _LOG_SECONDS:
                self._log(now)

    def _log(self, now: float) -> None:
        self._logged_at = now
        done, total = self._num_bytes / 1e9, self._total_bytes / 1e9
        log.info("downloading %s: %.1f of %.1f GB", self._model, done, total)


class _Stopped(Exception):
    """Ends the downloads in other threads when one of them has failed, or the user stops them."""


def plan_download(repo_id: str, revision: str) -> Download:
    """Ask the hub for the files of a model at a commit, a branch or a tag.

    Raise `ModelNotFound` if it has none or wants the user's consent, `HubUnavailable` if it is silent.
    """
    whole = list_files(repo_id, revision)
    paths = read_files(file.path for file in whole.files)
    if not paths.intersection(INDEX_FILES):
        singles = [file.path for file in whole.files if file.path.endswith((".safetensors", ".gguf"))]
        single = (
            f"; it has {singles[0]}: `diffuserve pull {repo_id}:{singles[0]} --as NAME`" if singles else ""
        )
        raise ModelNotFound(
            f"model {repo_id!r}: the repository has no model_index.json, so it is not in diffusers' format; "
            f"look for one whose files are in folders such as transformer/ and vae/{single}"
        )
    return _only(whole, lambda file: file.path in paths)


def plan_parts(download: Download, components: Collection[str]) -> Download:
    """Return the download of a model's configs and vocabularies, and of the weights of some components."""

    def is_wanted(file: HubFile) -> bool:
        return not file.path.endswith(".safetensors") or file.path.partition("/")[0] in components

    return _only(download, is_wanted)


def plan_file(repo_id: str, revision: str, path: str) -> Download:
    """Ask the hub for one file of a repository. Raise as `plan_download`, and `ModelNotFound` without it."""
    whole = list_files(repo_id, revision)
    names = [file.path for file in whole.files]
    if path not in names:
        raise ModelNotFound(f"{repo_id} has no file {path!r}{did_you_mean(path, names)}")
    return _only(whole, lambda file: file.path == path)


def list_files(repo_id: str, revision: str) -> Download:
    """Return all files of a repository, as if all were to be downloaded. Raise as `plan_download`."""
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    with _explained(repo_id, revision):
        api = HfApi()
        info = api.model_info(repo_id, revision=revision)
        entries = api.list_repo_tree(repo_id, recursive=True, revision=str(info.sha))
        files = tuple(_hub_file(entry) for entry in entries if isinstance(entry, RepoFile))
    return Download(repo_id, str(info.sha), files, 0, _license_of(info.card_data))


def _license_of(card: Any) -> str | None:
    """Return the license that a model's card states: its own name, where that is none that the hub knows."""
    stated = (card.get("license_name") or card.get("license")) if card is not None else None
    return str(stated)[:_MAX_CHARACTERS] if stated else None


def _only(download: Download, is_wanted: Callable[[HubFile], bool]) -> Download:
    files = tuple(file for file in download.files if is_wanted(file))
    missing = sum(_missing_bytes_of(download, file) for file in files)
    return replace(download, files=files, missing_bytes=missing)


def fetch_configs(download: Download) -> Path:
    """Fetch the small files, by which a model can be checked before the large ones; return the folder."""
    return _complete(download, [file for file in download.files if file.sha256 is None])


def fetch_all(download: Download, report: Report = lambda _: None) -> Path:
    """Fetch what is missing, several files at a time; return the folder.

    After an interruption a second call continues. Raise as `plan_download`.
    """
    large = [file for file in download.files if file.sha256 and _missing_bytes_of(download, file)]
    stop = threading.Event()
    with _explained(download.repo_id, download.commit), ThreadPoolExecutor(_CONNECTIONS) as threads:
        try:
            for fetched in as_completed(
                [threads.submit(_fetch_large, download, file, report, stop) for file in large]
            ):
                fetched.result()
        except BaseException:
            stop.set()
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    return _complete(download, download.files)


def cached_folder(repo_id: str, commit: str) -> Path | None:
    """Return the folder of a model that was downloaded as a whole; `None` if it was not. Asks no hub."""
    folder = snapshot_folder(repo_id, commit)
    return folder if folder.is_dir() and missing_files(repo_id, commit) == [] else None


def missing_files(repo_id: str, commit: str) -> list[str] | None:
    """Return the files that a download left out; `None` if this machine does not know them all."""
    from huggingface_hub import get_cached_repo_tree
    from huggingface_hub.errors import CachedRepoTreeNotFoundError

    try:
        known = read_files(file.path for file in get_cached_repo_tree(repo_id, revision=commit))
    except CachedRepoTreeNotFoundError:
        return None
    folder = snapshot_folder(repo_id, commit)
    return sorted(path for path in known if not (folder / path).exists())


def cached_commits(repo_id: str) -> list[str]:
    """Return the commits of a model that are on this machine as a whole."""
    return [folder.name for folder in snapshots(repo_id) if cached_folder(repo_id, folder.name)]


def snapshots(repo_id: str) -> list[Path]:
    """Return the folders of a model on this machine, one for each commit, whole or in part."""
    folder = repo_folder(repo_id) / "snapshots"
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def cached_repositories() -> list[str]:
    """Return the ids of the repositories in the hub's cache; none without the hub's library."""
    try:
        folders = sorted(cache_folder().glob("models--*--*"))
    except ModelNotFound:
        return []
    return [folder.name.removeprefix("models--").replace("--", "/") for folder in folders]


def cache_folder() -> Path:
    """Return the folder of the hub's cache, which `HF_HOME` or `HF_HUB_CACHE` may move.

    Raise `ModelNotFound` where the hub's library is not installed, as in the base install.
    """
    try:
        from huggingface_hub import constants
    except ImportError as error:
        raise ModelNotFound(
            f"models of the hub need huggingface_hub, which is not installed; {Extra.ENGINE.remedy}"
        ) from error

    return Path(constants.HF_HUB_CACHE).expanduser()


def repo_folder(repo_id: str) -> Path:
    """Return the folder of a repository in the hub's cache."""
    return cache_folder() / f"models--{repo_id.replace('/', '--')}"


def snapshot_folder(repo_id: str, commit: str) -> Path:
    """Return the folder of a repository at one commit in the hub's cache."""
    return repo_folder(repo_id) / "snapshots" / commit


def _hub_file(entry: Any) -> HubFile:
    """Raise `HubUnavailable` if what should be a SHA-256 is none: it names a file on this machine."""
    sha256 = None if entry.lfs is None else str(entry.lfs.sha256)
    if sha256 is not None and not SHA256.fullmatch(sha256):
        raise HubUnavailable(f"the hub names {sha256[:_MAX_CHARACTERS]!r} as the SHA-256 of {entry.path}")
    return HubFile(entry.path, entry.size, sha256)


def _blob(repo_id: str, file: HubFile) -> Path:
    return repo_folder(repo_id) / "blobs" / str(file.sha256)


def _part(repo_id: str, file: HubFile) -> Path:
    return _blob(repo_id, file).with_name(f"{file.sha256}.incomplete")


def _missing_bytes_of(download: Download, file: HubFile) -> int:
    return _missing_bytes(download.repo_id, download.commit, file)


def _missing_bytes(repo_id: str, commit: str, file: HubFile) -> int:
    if (snapshot_folder(repo_id, commit) / file.path).exists():
        return 0
    if file.sha256 is None:
        return file.num_bytes
    if _blob(repo_id, file).exists():
        return 0
    part = _part(repo_id, file)
    return max(file.num_bytes - (part.stat().st_size if part.exists() else 0), 0)


def _complete(download: Download, files: Sequence[HubFile]) -> Path:
    """Have the hub's library fetch what is still missing, and link the files into the model's folder."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    with _explained(download.repo_id, download.commit), disable_progress_bars():
        folder = snapshot_download(
            download.repo_id, revision=download.commit, allow_patterns=[file.path for file in files]
        )
    return Path(folder)


def _fetch_large(download: Download, file: HubFile, report: Report, stop: threading.Event) -> None:
    """Fetch a file to where the hub's library looks for it, after the part that is there already."""
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    blob, part = _blob(download.repo_id, file), _part(download.repo_id, file)
    blob.parent.mkdir(parents=True, exist_ok=True)
    locks = cache_folder() / ".locks" / repo_folder(download.repo_id).name
    locks.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(locks / f"{file.sha256}.lock"):  # the library's own, so that one process fetches it
        if blob.exists():
            return
        _fetch_part(download, file, part, _Bar(report, stop))
        with part.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        if digest != file.sha256:
            part.unlink()
            raise HubUnavailable(f"{file.path} of {download.repo_id} arrived damaged; try again")
        part.rename(blob)


def _fetch_part(download: Download, file: HubFile, part: Path, bar: "_Bar") -> None:
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    url = hf_hub_url(download.repo_id, file.path, revision=download.commit)
    if part.exists() and part.stat().st_size > file.num_bytes:
        part.unlink()  # written by another program: its state is unknown
    with part.open("ab") as content:
        http_get(
            url,
            content,
            resume_size=content.tell(),
            headers=build_hf_headers(),
            expected_size=file.num_bytes,
            tqdm_class=lambda **_: bar,  # type: ignore[arg-type]
        )


class _Bar:
    """Stand-in for a progress bar of the hub's library."""

    def __init__(self, report: Report, stop: threading.Event) -> None:
        self._report = report
        self._stop = stop

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def update(self, num_bytes: int) -> None:
        if self._stop.is_set():
            raise _Stopped
        self._report(num_bytes)


@contextmanager
def _explained(repo_id: str, revision: str) -> Iterator[None]:
    """Turn the errors of the hub's library into ones that name the remedy."""
    import httpx2
    from huggingface_hub.errors import HFValidationError

    try:
        yield
    except (httpx2.HTTPError, HFValidationError, OSError) as error:
        raise _explanation(error, repo_id, revision) from error


def _explanation(error: Exception, repo_id: str, revision: str) -> DiffuserveError:
    from huggingface_hub import constants, errors

    message = str(error).strip().partition("\n")[0]
    told = f"{type(error).__name__}: {message[:_MAX_CHARACTERS]}"
    match error:
        case errors.GatedRepoError():
            return ModelNotFound(
                f"model {repo_id!r} is gated: accept its terms at {constants.ENDPOINT}/{repo_id}, then log "
                "in with `hf auth login`, or give a token in HF_TOKEN"
            )
        case errors.RevisionNotFoundError():
            return ModelNotFound(
                f"model {repo_id!r} has no revision {revision!r}; see "
                f"{constants.ENDPOINT}/{repo_id}/commits/main"
            )
        case errors.RepositoryNotFoundError():
            return ModelNotFound(
                f"the hub has no model {repo_id!r}, or it is private; check the spelling, or log in with "
                "`hf auth login`"
            )
        case errors.HFValidationError():
            return ModelNotFound(f"model {repo_id!r} is no hub id, which is owner/name ({told})")
        case errors.OfflineModeIsEnabled():
            return HubUnavailable(
                f"model {repo_id!r} is not on this machine, and HF_HUB_OFFLINE forbids to fetch it: "
                f"unset it. {_WITHOUT_NETWORK}"
            )
        case OSError(errno=errno.ENOSPC):
            return HubUnavailable(
                f"no space is left in {cache_folder()}; free some, or move the hub's cache with HF_HOME"
            )
        case _:
            return HubUnavailable(
                f"model {repo_id!r} could not be fetched from {constants.ENDPOINT} ({told}). Check the "
                f"network and its proxy, or name a mirror in HF_ENDPOINT. {_WITHOUT_NETWORK}"
            )
