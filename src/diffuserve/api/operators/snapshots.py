"""Snapshots of the server, read at most once a second for all who ask."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import orjson

from diffuserve.api.operators.snapshot import snapshot_of
from diffuserve.domain.resources.operations import OperationsResource
from diffuserve.events.base import EventBus
from diffuserve.jobs.reads.shared_reads import SharedReads
from diffuserve.jobs.store import JobStore

_FRESH_SECONDS = 1.0


@dataclass(frozen=True)
class Snapshot:
    """State of the server, encoded once for all who read it."""

    resource: OperationsResource

    @cached_property
    def encoded(self) -> bytes:
        """The resource as JSON."""
        return orjson.dumps(self.resource)

    @cached_property
    def content(self) -> dict[str, Any]:
        """The resource as plain JSON values."""
        values = orjson.loads(self.encoded)
        assert isinstance(values, dict)
        return values


class Snapshots:
    """Reads the store once for all that watch it through this process."""

    def __init__(self, store: JobStore, bus: EventBus) -> None:
        self._store = store
        self._bus = bus
        self._revision = 0
        self._reads: SharedReads[None, Snapshot] = SharedReads(self._read, _FRESH_SECONDS)

    async def newest(self) -> Snapshot:
        """Return a snapshot, at most a second old. Raise `ServerUnavailable`."""
        return await self._reads.get(None)

    async def _read(self, _key: None) -> Snapshot:
        overview = await self._store.overview.read()
        self._revision += 1
        return Snapshot(snapshot_of(overview, self._revision, self._bus.latest_progress))
