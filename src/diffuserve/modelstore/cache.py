"""The models on a machine's disk, which all of its workers share: each is fetched once, and the oldest go."""

import logging
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from diffuserve.domain.errors import InvalidModel, ModelCacheFull
from diffuserve.modelstore.eviction import CachedModel, choose_victims
from diffuserve.modelstore.layout import MODELS, NAMES
from diffuserve.modelstore.locks import FileLock, locked
from diffuserve.modelstore.manifest import Manifest, Reference
from diffuserve.modelstore.model_folder import newest_version, read_manifest
from diffuserve.modelstore.partial import PartialModel, explained

log = logging.getLogger(__name__)

_PARTIAL, _LOCKS, _TRASH = "partial", "locks", "trash"
_BLOCK_BYTES = 512  # in which `st_blocks` counts
_SPARE_BYTES = 256 * 1024 * 1024  # of the disk, for everything else
Fetch = Callable[[PartialModel], None]


@dataclass(frozen=True)
class HeldModel:
    """A whole model on this machine. It stays there until `release`, or until this process ends."""

    manifest: Manifest
    folder: Path
    _lock: FileLock | None = None

    def release(self) -> None:
        """Let the model give way to others."""
        if self._lock is not None:
            self._lock.release()


class ModelCache:
    """Models under `root`, with the layout of a store. Several processes may use it at once.

    Whoever uses a model, or fetches it, holds its lock shared; to take it away, one holds it alone.
    """

    def __init__(self, root: Path, max_bytes: int | None = None) -> None:
        """Use a folder, which is created where need be; without `max_bytes` the disk is the limit."""
        self._root, self._max_bytes = root, max_bytes

    def hold(self, version: str) -> HeldModel | None:
        """Return a model and keep it from giving way; `None` if it is not here as a whole."""
        with explained(self._root):
            lock = FileLock(self._lock_path(version), is_shared=True)
            lock.take()
            held = self._held(version, lock)
            if held is None:
                lock.release()
            return held

    def fetch(self, manifest: Manifest, fetch: Fetch) -> HeldModel:
        """Return a model that `fetch` brings, unless another process has done so meanwhile.

        Raise `ModelCacheFull` if there is no room even without the models that nobody uses,
        `InvalidParams`, and what `fetch` raises: what has arrived is kept for the next try.
        """
        with explained(self._root):
            lock = FileLock(self._lock_path(manifest.hash), is_shared=True)
        try:
            return self._fetch(manifest, fetch, lock)
        except BaseException:
            lock.release()
            raise

    def note_name(self, name: str, version: str) -> None:
        """Note what a name means now, for times when the store cannot be asked."""
        path = self._root / NAMES / name / version
        with explained(self._root):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def known_version(self, reference: Reference) -> str | None:
        """Return what a name meant when it was noted last; `None` if it never was."""
        return newest_version(self._root, reference)

    def _fetch(self, manifest: Manifest, fetch: Fetch, lock: FileLock) -> HeldModel:
        lock.take()
        with self._fetching(manifest):
            held = self._held(manifest.hash, lock)
            if held is None:
                partial = self._begin(manifest)
                fetch(partial)
                partial.complete(self._root / MODELS / manifest.hash)
                held = self._held(manifest.hash, lock)
        assert held is not None
        return held

    def _held(self, version: str, lock: FileLock) -> HeldModel | None:
        """Return a model whose `lock` is held; `None` if it is not here, or its files were changed."""
        folder = self._root / MODELS / version
        with explained(self._root):
            try:
                manifest = read_manifest(folder, version)
            except FileNotFoundError:
                return None
            except InvalidModel as error:
                log.warning("%s; the model is fetched anew", error)
                return None
            lock.touch()
        return HeldModel(manifest, folder / manifest.name, lock)

    @contextmanager
    def _fetching(self, manifest: Manifest) -> Iterator[None]:
        """Be the only process that fetches a model within the block."""
        with explained(self._root):
            lock = FileLock(self._root / _LOCKS / f"{manifest.hash}.fetching")
        try:
            if not lock.try_take():
                log.info("another process on this machine fetches %s; waiting for it", manifest.reference)
                lock.take()
            yield
        finally:
            lock.release()

    def _begin(self, manifest: Manifest) -> PartialModel:
        """Make room for a model and reserve it; one at a time, so that no room is given away twice."""
        folder = self._root / _PARTIAL / manifest.hash
        with explained(self._root), locked(self._root / _LOCKS / "room"):
            shutil.rmtree(self._root / _TRASH, ignore_errors=True)  # of a process that was killed
            if (self._root / MODELS / manifest.hash).exists():  # in spite of that not to be held
                self._discard(manifest.hash)
            self._make_room(manifest)
            return PartialModel(folder, manifest)

    def _make_room(self, manifest: Manifest) -> None:
        with ExitStack() as locks:
            others = [model for model in self._models(locks) if model.hash != manifest.hash]
            excess = self._bytes_over_limit(manifest, others)
            victims = choose_victims(others, max(excess, self._bytes_short(manifest)))
            if victims is None:
                raise ModelCacheFull(self._explain_full(manifest, others))
            for victim in victims:
                log.info("removing the model %s from %s, to make room", victim.hash, self._root)
                self._discard(victim.hash)

    def _models(self, locks: ExitStack) -> list[CachedModel]:
        """Return all models, whole or in part; those that nobody uses stay so until `locks` are closed."""
        versions = {path.name for top in (MODELS, _PARTIAL) for path in (self._root / top).glob("*")}
        return [self._cached(version, locks) for version in sorted(versions)]

    def _cached(self, version: str, locks: ExitStack) -> CachedModel:
        path = self._lock_path(version)
        lock = FileLock(path)
        locks.callback(lock.release)
        is_in_use = not lock.try_take()
        return CachedModel(version, self._size(version), path.stat().st_mtime, is_in_use)

    def _size(self, version: str) -> int:
        files = [path for top in (MODELS, _PARTIAL) for path in (self._root / top / version).rglob("*")]
        return sum(path.stat().st_size for path in files if path.is_file())

    def _bytes_over_limit(self, manifest: Manifest, others: Sequence[CachedModel]) -> int:
        if self._max_bytes is None:
            return 0
        return manifest.num_bytes + sum(model.num_bytes for model in others) - self._max_bytes

    def _bytes_short(self, manifest: Manifest) -> int:
        """Return how much more room a model needs than the disk has."""
        part = (self._root / _PARTIAL / manifest.hash).rglob("*")
        there = sum(path.stat().st_blocks * _BLOCK_BYTES for path in part if path.is_file())
        return manifest.num_bytes - there + _SPARE_BYTES - shutil.disk_usage(self._root).free

    def _explain_full(self, manifest: Manifest, others: Sequence[CachedModel]) -> str:
        used = sum(model.num_bytes for model in others if model.is_in_use)
        limit = "no limit" if self._max_bytes is None else f"a limit of {self._max_bytes:,}"
        free = shutil.disk_usage(self._root).free
        return (
            f"{manifest.reference} has {manifest.num_bytes:,} bytes, and {self._root} has {limit}, {used:,} "
            f"bytes in use by other workers, and {free:,} bytes free on its disk; raise --model-cache-bytes, "
            "or give a folder on a larger disk with --model-cache"
        )

    def _discard(self, version: str) -> None:
        """Remove a model: at once from where it is looked for, and then from the disk."""
        trash = self._root / _TRASH / secrets.token_hex(8)
        trash.mkdir(parents=True)
        for top in (MODELS, _PARTIAL):
            if (path := self._root / top / version).exists():
                path.rename(trash / top)
        shutil.rmtree(trash, ignore_errors=True)

    def _lock_path(self, version: str) -> Path:
        return self._root / _LOCKS / version
