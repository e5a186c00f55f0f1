"""A rank's end of the group's key-value store, as torch takes it: torch's own keys pass through it, too."""

import json
import socket
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch.distributed.distributed_c10d import Store

from diffuserve.parallel.rank_place import RankPlace
from diffuserve.parallel.seal import NotProven, SealedConnection

_ANSWER_SECONDS = 30.0
_RETRY_SECONDS = 0.5


class StoreGone(RuntimeError):
    """The launcher of rank 0 has ended, does not respond, or is somebody else."""


class RankStore(Store):
    """A store in which every word is proven. Safe from any thread: none holds it while it waits for a key."""

    def __init__(self, connection: SealedConnection) -> None:
        super().__init__()
        self._connection = connection
        self._asking = threading.Lock()
        connection.settimeout(_ANSWER_SECONDS)

    def set(self, key: str, value: bytes | str) -> None:
        self._ask("set", key, _text(value))

    def get(self, key: str) -> bytes:
        """Wait for a key and return its value. Raise `StoreGone`, or `TimeoutError` after `timeout`."""
        self.wait([key])
        return _bytes(self._ask("get", key))

    def add(self, key: str, value: int) -> int:
        return int(self._ask("add", key, value))

    def compare_set(self, key: str, expected_value: bytes | str, desired_value: bytes | str) -> bytes:
        return _bytes(self._ask("compare_set", key, _text(expected_value), _text(desired_value)))

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._ask("has", *keys))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are there. Raise `StoreGone`, or `TimeoutError`."""
        due = time.monotonic() + (timeout or self.timeout).total_seconds()  # type: ignore[attr-defined]
        while not self._ask("wait", *keys):
            if time.monotonic() > due:
                raise TimeoutError(f"the other ranks did not set {', '.join(keys)} in time")

    def delete_key(self, key: str) -> bool:
        return bool(self._ask("delete", key))

    def num_keys(self) -> int:
        return int(self._ask("count"))

    deleteKey, getNumKeys = delete_key, num_keys  # the names by which torch calls them

    def clone(self) -> "RankStore":
        """Return this store, which several threads may use."""
        return self

    def has_extended_api(self) -> bool:
        return False

    def close(self) -> None:
        self._connection.close()

    def _ask(self, name: str, *arguments: Any) -> Any:
        with self._asking:
            try:
                self._connection.send(json.dumps([name, *arguments]).encode())
                return json.loads(self._connection.receive())
            except (OSError, NotProven) as error:
                raise StoreGone(f"the store of this group of ranks does not respond: {error}") from error


def open_rank_store(place: RankPlace) -> RankStore:
    """Connect to the store of a group, whose first machine may not have started yet.

    Raise `NotProven` if it has another secret, and `OSError` if the launcher of this rank is gone.
    """
    while True:
        try:
            return _opened(place.connect(), place.secret)
        except OSError:
            if place.is_inherited:
                raise
            time.sleep(_RETRY_SECONDS)
        except NotProven as error:
            remedy = "give all machines of the worker the same --node-secret-file"
            raise NotProven(f"{place.store} has another secret than this machine; {remedy}") from error


def _opened(stream: socket.socket, secret: bytes) -> RankStore:
    try:
        return RankStore(SealedConnection(stream, secret))
    except BaseException:
        stream.close()
        raise


def _text(value: bytes | str) -> str:
    return (value.encode() if isinstance(value, str) else value).decode("latin-1")


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")
