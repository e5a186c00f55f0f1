"""The models on a machine's disk, shared by its workers: each is fetched once, and old ones are evicted."""

import contextlib
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from diffuserve.domain.errors import InvalidModel, ModelCacheFull
from diffuserve.models.weights.published import publish
from diffuserve.modelstore.eviction import CachedModel, choose_victims
from diffuserve.modelstore.layout import MODELS, NAMES, PREPARED
from diffuserve.modelstore.locks import FileLock, locked
from diffuserve.modelstore.manifest import Manifest, Reference
from diffuserve.modelstore.model_folder import newest_version, read_manifest
from diffuserve.modelstore.partial import PartialModel, explained, move_synced
from diffuserve.private_files import check_own

log = logging.getLogger(__name__)

_PARTIAL, _LOCKS, _TRASH = "partial", "locks", "trash"
_BLOCK_BYTES = 512  # the unit of `st_blocks`
_SPARE_BYTES = 256 * 1024 * 1024  # kept free on the disk for other files
STALLED_SECONDS = 300.0
"""Seconds after which a process that fetches a model and brings nothing is not waited for any more."""
_LOOK_SECONDS = 0.2
_TOPS = (MODELS, _PARTIAL, PREPARED)
Fetch = Callable[[PartialModel], None]
WriteCopy = Callable[[Path, Callable[[int], None]], None]
"""Writes a copy into a folder, and tells the bytes of each file before."""


@dataclass(frozen=True)
class _Wanted:
    """A model or copy that room is made for, by its name in the cache and by its name for people."""

    hash: str
    num_bytes: int
    reference: str


@dataclass(frozen=True)
class HeldCopy:
    """A prepared copy on this machine. It stays there until `release`, or until this process ends."""

    folder: Path
    _lock: FileLock | None = None

    def release(self) -> None:
        """Let the copy be evicted for models."""
        if self._lock is not None:
            self._lock.release()


@dataclass(frozen=True)
class HeldModel:
    """A complete model on this machine. It stays there until `release`, or until this process ends."""

    manifest: Manifest
    folder: Path
    _lock: FileLock | None = None

    def __post_init__(self) -> None:
        publish(self.folder, {file.path: (file.size, file.sha256) for file in self.manifest.files})

    def release(self) -> None:
        """Let the model be evicted for others."""
        if self._lock is not None:
            self._lock.release()


class ModelCache:
    """Models under `root`, with the layout of a store. Several processes may use it at once.

    Using or fetching a model takes its lock shared; removing it takes the lock exclusively.
    """

    def __init__(self, root: Path, max_bytes: int | None = None) -> None:
        """Use a folder, which is created where need be; without `max_bytes` the disk is the limit."""
        self._root, self._max_bytes = root, max_bytes

    def hold(self, version: str) -> HeldModel | None:
        """Return a model and protect it from eviction; `None` if it is not here completely."""
        with explained(self._root):
            lock = FileLock(self._lock_path(version), is_shared=True)
            lock.take()
            held = self._held(version, lock)
            if held is None:
                lock.release()
            return held

    def fetch(self, manifest: Manifest, fetch: Fetch) -> HeldModel:
        """Return a model that `fetch` brings, unless another process has done so meanwhile.

        Raise `ModelCacheFull` if there is no room even without the unused models, `InvalidParams`, and what
        `fetch` raises: files that have arrived are kept for the next attempt.
        """
        with explained(self._root):
            lock = FileLock(self._lock_path(manifest.hash), is_shared=True)
        try:
            return self._fetch(manifest, fetch, lock)
        except BaseException:
            lock.release()
            raise

    def hold_copy(self, key: str) -> HeldCopy | None:
        """Return a prepared copy and protect it from eviction; `None` if there is none.

        Raise `InvalidParams` if another user may have written it.
        """
        folder = self._root / PREPARED / key
        if not folder.is_dir():
            return None
        check_own(folder, "model_cache")
        try:
            lock = FileLock(self._lock_path(key), is_shared=True)
        except OSError:  # nobody removes anything where nobody may write
            return HeldCopy(folder)
        lock.take()
        lock.touch()
        if folder.is_dir():
            return HeldCopy(folder, lock)
        lock.release()
        return None

    def make_copy(self, key: str, reference: str, write: WriteCopy) -> HeldCopy:
        """Return the prepared copy that `write` makes, unless another process has done so meanwhile.

        It takes free room, or that of other copies: no model is evicted for it. Raise `ModelCacheFull`,
        `InvalidParams`, and what `write` raises; an interrupted copy leaves nothing behind.
        """
        with explained(self._root):
            lock = FileLock(self._lock_path(key), is_shared=True)
        try:
            lock.take()  # so that it is not collected as garbage
            with self._turn(key, reference) as name:
                held = self.hold_copy(key)
                if held is None:
                    self._write_copy(key, name, reference, write)
                    held = self.hold_copy(key)
        finally:
            lock.release()
        assert held is not None
        return held

    def _write_copy(self, key: str, name: str, reference: str, write: WriteCopy) -> None:
        folder = self._root / _PARTIAL / name

        def make_room(num_bytes: int) -> None:
            with explained(self._root), locked(self._root / _LOCKS / "room"):
                self._make_room(_Wanted(name, self._size(name) + num_bytes, reference), (PREPARED,))

        with explained(folder, is_kept=False):
            shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
            folder.mkdir(parents=True)
            try:
                write(folder, make_room)
                move_synced(folder, self._root / PREPARED / key)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise

    def note_name(self, name: str, version: str) -> None:
        """Record the current version of a name, for times when the store is unavailable."""
        path = self._root / NAMES / name / version
        with explained(self._root):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def known_version(self, reference: Reference) -> str | None:
        """Return the last recorded version of a name; `None` if there is none."""
        return newest_version(self._root, reference)

    def _fetch(self, manifest: Manifest, fetch: Fetch, lock: FileLock) -> HeldModel:
        lock.take()
        with self._turn(manifest.hash, manifest.reference) as name:
            held = self._held(manifest.hash, lock)
            if held is None:
                partial = self._begin(manifest, name)
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
                check_own(folder, "model_cache")
                manifest = read_manifest(folder, version)
            except FileNotFoundError:
                return None
            except InvalidModel as error:
                log.warning("%s; the model is fetched anew", error)
                return None
            lock.touch()
        return HeldModel(manifest, folder / manifest.name, lock)

    @contextmanager
    def _turn(self, version: str, reference: str) -> Iterator[str]:
        """Be the only process that fetches a model, or writes a copy, within the block.

        Yield the name of the folder in which to do so; if the process that holds the lock makes no progress,
        as when it is stopped, this is another folder beside its own.
        """
        with explained(self._root):
            lock = FileLock(self._root / _LOCKS / f"{version}.fetching")
        try:
            if lock.try_take() or self._wait(lock, version, reference):
                yield version
            else:
                log.warning(
                    "that process has brought nothing for %g s; not waiting any more", STALLED_SECONDS
                )
                with self._beside(version) as name:
                    yield name
        finally:
            lock.release()

    def _wait(self, lock: FileLock, version: str, reference: str) -> bool:
        """Wait for the lock as long as the other process makes progress; return whether it was acquired."""
        log.info("another process on this machine fetches %s; waiting for it", reference)
        seen, moved_at = -1, time.monotonic()
        while not lock.try_take():
            if (newest := _newest_change(self._root / _PARTIAL / version)) != seen:
                seen, moved_at = newest, time.monotonic()
            elif time.monotonic() - moved_at > STALLED_SECONDS:
                return False
            time.sleep(_LOOK_SECONDS)
        return True

    @contextmanager
    def _beside(self, version: str) -> Iterator[str]:
        """Yield the name of a folder for only this process, which is removed unless it was moved away."""
        name = f"{version}-{secrets.token_hex(8)}"
        lock = FileLock(self._lock_path(name), is_shared=True)
        lock.take()
        try:
            yield name
        finally:
            shutil.rmtree(self._root / _PARTIAL / name, ignore_errors=True)
            self._lock_path(name).unlink(missing_ok=True)
            lock.release()

    def _begin(self, manifest: Manifest, name: str) -> PartialModel:
        """Make room for a model and reserve it, one at a time, so that no room is reserved twice."""
        folder = self._root / _PARTIAL / name
        with explained(self._root), locked(self._root / _LOCKS / "room"):
            shutil.rmtree(self._root / _TRASH, ignore_errors=True)  # of a process that was killed
            if (self._root / MODELS / manifest.hash).exists():  # although it could not be held
                self._discard(manifest.hash)
            self._make_room(_Wanted(name, manifest.num_bytes, manifest.reference))
            return PartialModel(folder, manifest)

    def _make_room(self, wanted: _Wanted, from_tops: Sequence[str] = _TOPS) -> None:
        with ExitStack() as locks:
            others = [model for model in self._models(locks) if model.hash != wanted.hash]
            excess = self._bytes_over_limit(wanted, others)
            giving_way = [model for model in others if self._is_in(model.hash, from_tops)]
            victims = choose_victims(giving_way, max(excess, self._bytes_short(wanted)))
            if victims is None:
                raise ModelCacheFull(self._explain_full(wanted, others))
            for victim in victims:
                log.info("removing the model %s from %s, to make room", victim.hash, self._root)
                self._discard(victim.hash)

    def _is_in(self, version: str, tops: Sequence[str]) -> bool:
        return any((self._root / top / version).exists() for top in tops)

    def _models(self, locks: ExitStack) -> list[CachedModel]:
        """Return all models and copies, whole or in part; unused ones stay so until `locks` are closed."""
        versions = {path.name for top in _TOPS for path in (self._root / top).glob("*")}
        return [self._cached(version, locks) for version in sorted(versions)]

    def _cached(self, version: str, locks: ExitStack) -> CachedModel:
        path = self._lock_path(version)
        lock = FileLock(path)
        locks.callback(lock.release)
        is_in_use = not lock.try_take()
        return CachedModel(version, self._size(version), path.stat().st_mtime, is_in_use)

    def _size(self, version: str) -> int:
        files = [path for top in _TOPS for path in (self._root / top / version).rglob("*")]
        return sum(path.stat().st_size for path in files if path.is_file())

    def _bytes_over_limit(self, wanted: _Wanted, others: Sequence[CachedModel]) -> int:
        if self._max_bytes is None:
            return 0
        return wanted.num_bytes + sum(model.num_bytes for model in others) - self._max_bytes

    def _bytes_short(self, wanted: _Wanted) -> int:
        """Return by how many bytes a model exceeds the free room."""
        part = (self._root / _PARTIAL / wanted.hash).rglob("*")
        there = sum(path.stat().st_blocks * _BLOCK_BYTES for path in part if path.is_file())
        return wanted.num_bytes - there + _SPARE_BYTES - shutil.disk_usage(self._root).free

    def _explain_full(self, wanted: _Wanted, others: Sequence[CachedModel]) -> str:
        used = sum(model.num_bytes for model in others if model.is_in_use)
        limit = "no limit" if self._max_bytes is None else f"a limit of {self._max_bytes:,}"
        free = shutil.disk_usage(self._root).free
        return (
            f"{wanted.reference} has {wanted.num_bytes:,} bytes, and {self._root} has {limit}, {used:,} "
            f"bytes in use by other workers, and {free:,} bytes free on its disk; raise --model-cache-bytes, "
            "or give a folder on a larger disk with --model-cache"
        )

    def _discard(self, version: str) -> None:
        """Remove a model: first from the folder of models, in one step, and then from the disk."""
        trash = self._root / _TRASH / secrets.token_hex(8)
        trash.mkdir(parents=True)
        for top in _TOPS:
            if (path := self._root / top / version).exists():
                path.rename(trash / top)
        shutil.rmtree(trash, ignore_errors=True)

    def _lock_path(self, version: str) -> Path:
        return self._root / _LOCKS / version


def _newest_change(folder: Path) -> int:
    """Return when a file below a folder was last written to, in nanoseconds; 0 without files.

    The folder may be moved away meanwhile: `os.walk` takes a folder that is gone for an empty one.
    """
    times = [0]
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with contextlib.suppress(FileNotFoundError):
                times.append(Path(place, name).stat().st_mtime_ns)
    return max(times)
