"""Names of adapters: what they mean to a tenant, and which ones a model takes."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from cachetools import TTLCache

from diffuserve.domain.errors import AdapterNotFound, InvalidParams, ServerUnavailable
from diffuserve.domain.models.adapter_entry import AdapterEntry
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.adapter_use import AdapterUse, with_digests
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.resources.adapter import AdapterOrigin
from diffuserve.domain.text.nearest import did_you_mean
from diffuserve.domain.workers.worker import Worker
from diffuserve.telemetry.log_fields import once_a_minute

log = logging.getLogger(__name__)

_LISTED_SECONDS = 2.0
_MAX_TENANTS = 1_000
_MAX_SHOWN = 20


class Adapters(Protocol):
    """A store of adapters. Its methods take a while: call them on another thread.

    A `tenant` that is `None` means public adapters. Every method raises `ServerUnavailable` if the store does
    not respond.
    """

    def entries(self, tenant: str | None) -> list[AdapterEntry]:
        """Return a tenant's adapters."""
        ...

    def find(self, tenant: str | None, name: str) -> AdapterEntry | None:
        """Return a tenant's adapter of a name."""
        ...

    def add(self, file: Path, name: str, tenant: str | None) -> AdapterEntry:
        """Give a file a name. Raise `InvalidAdapter` if it is no adapter."""
        ...

    def remove(self, tenant: str | None, name: str) -> None:
        """Remove a name, and keep its file for a while. Raise `AdapterNotFound`."""
        ...


ReadWorkers = Callable[[], Awaitable[Sequence[Worker]]]
"""Returns all workers that are known, lost ones too."""


class AdapterNames:
    """The adapters that tenants may ask for: their own, the public ones, then those of workers' own files.

    Without a store every name is left to the worker that runs the job.
    """

    def __init__(
        self,
        adapters: Adapters | None,
        read_workers: ReadWorkers,
        own: Collection[str] = (),
        bundled: Mapping[str, Collection[str]] = MappingProxyType({}),
    ) -> None:
        """Look names up in a store.

        Workers know others without it: those that they tell, the names `own`, and those `bundled` by model.
        """
        self._adapters, self._read_workers = adapters, read_workers
        self._own, self._bundled = own, bundled
        self._listed: TTLCache[str, Sequence[AdapterEntry]] = TTLCache(_MAX_TENANTS, _LISTED_SECONDS)

    @property
    def store(self) -> Adapters:
        """Return the store. Raise `AdapterNotFound` if there is none."""
        if self._adapters is None:
            raise AdapterNotFound(
                "this server has no store of adapters; its operator may name one: DIFFUSERVE_ADAPTER_STORE"
            )
        return self._adapters

    async def resolve(self, tenant_id: str, params: GenerationParams, spec: ModelSpec) -> GenerationParams:
        """Return the parameters with the digest of each adapter that is in the store.

        Raise `InvalidParams`, which names the field, for a name that means nothing to this tenant, and for an
        adapter of another family than the model's; `ServerUnavailable` if the store does not respond.
        """
        uses = params.adapters or ()
        digests = {use.name: await self.digest(tenant_id, place, use, spec) for place, use in enumerate(uses)}
        return replace(params, adapters=with_digests(uses, digests))

    async def digest(self, tenant_id: str, place: int, use: AdapterUse, spec: ModelSpec) -> str | None:
        """Return the digest of the adapter at a place of a request; `None` if its worker knows the name.

        Raise as `resolve`.
        """
        if self._adapters is None:
            return None
        field = f"adapters.{place}.name"
        entry = await asyncio.to_thread(self._find, tenant_id, use.name)
        if entry is not None:
            _check_family(field, entry, spec)
            return entry.digest
        if use.name in await self._beside_store(spec):
            return None
        known = await self.names_for(tenant_id, spec)
        shown = ", ".join(known[:_MAX_SHOWN]) or "none"
        remedy = (
            f"there is no such adapter{did_you_mean(use.name, known)}; for {spec.name} there are: {shown}"
        )
        raise InvalidParams(field, use.name, remedy)

    async def visible(self, tenant_id: str) -> list[AdapterEntry]:
        """Return what of the store a tenant's requests may name; its own hide public ones of the same names.

        Raise `ServerUnavailable` if the store does not respond.
        """
        if self._adapters is None:
            return []
        return await asyncio.to_thread(self._visible, tenant_id)

    async def beside_store(
        self, specs: Iterable[ModelSpec]
    ) -> dict[str, tuple[AdapterOrigin, list[ModelSpec]]]:
        """Return the names that mean something without the store: where from, and to which of these models.

        A name that ships with one model and of which workers have a file besides is of the first kind.
        """
        found: dict[str, tuple[AdapterOrigin, list[ModelSpec]]] = {}
        for spec in specs:
            for name, origin in (await self._beside_store(spec)).items():
                found.setdefault(name, (origin, []))[1].append(spec)
        return found

    async def names_for(self, tenant_id: str, spec: ModelSpec) -> tuple[str, ...]:
        """Return the names that a tenant's requests for a model may have, as of two seconds ago.

        A store that does not respond has none: what is asked for besides still gets its answer.
        """
        if not spec.max_adapters:
            return ()
        entries = await self._as_listed(tenant_id)
        stored = (entry.name for entry in entries if entry.fits(spec))
        return tuple(sorted({*await self._beside_store(spec), *stored}))

    def forget(self) -> None:
        """Read what there is anew: it was changed."""
        self._listed.clear()

    async def _beside_store(self, spec: ModelSpec) -> dict[str, AdapterOrigin]:
        """Return the names that a model's workers know without the store; files of their own go first."""
        if not spec.max_adapters:
            return {}
        workers = await self._read_workers()
        told = [name for each in workers if spec.name in each.models for name in each.report.own_adapters]
        names: dict[str, AdapterOrigin] = dict.fromkeys(self._bundled.get(spec.name, ()), "model")
        return names | dict.fromkeys((*self._own, *told), "worker")

    async def _as_listed(self, tenant_id: str) -> Sequence[AdapterEntry]:
        if self._adapters is None:
            return ()
        listed = self._listed.get(tenant_id)
        if listed is None:
            try:
                listed = self._listed[tenant_id] = await self.visible(tenant_id)
            except ServerUnavailable as error:
                log.warning("adapters are not listed: %s", error, extra=once_a_minute())
                return ()
        return listed

    def _find(self, tenant_id: str, name: str) -> AdapterEntry | None:
        return self.store.find(tenant_id, name) or self.store.find(None, name)

    def _visible(self, tenant_id: str) -> list[AdapterEntry]:
        public, own = self.store.entries(None), self.store.entries(tenant_id)
        by_name = {entry.name: entry for entry in (*public, *own)}
        return [by_name[name] for name in sorted(by_name)]


def _check_family(field: str, entry: AdapterEntry, spec: ModelSpec) -> None:
    if not entry.fits(spec):
        made_for = " or ".join(entry.families)
        remedy = f"was made for models of the family {made_for}; {spec.name} is of the family {spec.family}"
        raise InvalidParams(field, entry.name, remedy)
