"""Takes in the adapters that tenants upload, within their plans."""

import asyncio
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from weakref import WeakValueDictionary

from fastapi import Request

from diffuserve.api.auth.access import Caller
from diffuserve.api.config import ApiConfig
from diffuserve.api.door.upload import BatchUploads, Body
from diffuserve.api.reads.adapter_names import AdapterNames
from diffuserve.api.reads.catalog import Catalog
from diffuserve.domain.errors import AdaptersFull, Forbidden, InvalidAdapter, InvalidParams
from diffuserve.domain.models.adapter_entry import AdapterEntry
from diffuserve.domain.tenant import Plan, Role

_REMEDY = "send a smaller adapter: one of a lower rank, or in 16 bits"


class AdapterIntake:
    """Checks uploaded adapters by their headers and gives them names. Those of operators are public."""

    def __init__(self, config: ApiConfig, catalog: Catalog, names: AdapterNames) -> None:
        """Bodies are bounded for each tenant by what one adapter may have: one comes after another."""
        self._config, self._catalog, self._names = config, catalog, names
        self._uploads = BatchUploads(replace(config, max_tenant_upload_bytes=config.max_adapter_bytes))
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def check_allowed(self, caller: Caller) -> None:
        """Raise `Forbidden` unless the server takes adapters from this caller."""
        if not self._config.adapter_uploads and Role.OPERATOR not in caller.roles:
            raise Forbidden(
                "this server takes no adapters of tenants; ask its operator, who may start it with "
                "DIFFUSERVE_ADAPTER_UPLOADS=true"
            )

    async def add(self, request: Request, caller: Caller, name: str) -> AdapterEntry:
        """Receive the body in bounded time, and publish the adapter in it under a name of the caller's.

        Raise `Forbidden`, `AdaptersFull` or `HTTPException` 413 by the plan, `UploadTooSlow`, `RateLimited`,
        `InvalidParams` for a file that is no adapter, and `ServerUnavailable`.
        """
        self.check_allowed(caller)
        store, plan = self._names.store, await self._catalog.plan(caller.tenant_id)
        most = min(self._config.max_adapter_bytes, plan.max_adapters_bytes or self._config.max_adapter_bytes)
        async with (
            self._turns.setdefault(caller.tenant_id, asyncio.Lock()),  # two at once would exceed the plan
            self._uploads.received(request, caller.tenant_id, most, _REMEDY) as body,
        ):
            if caller.scope is not None:
                others = await asyncio.to_thread(store.entries, caller.scope)
                _check_plan(plan, [entry for entry in others if entry.name != name], len(body))
            entry = await asyncio.to_thread(self._publish, body, name, caller.scope)
        self._names.forget()
        return entry

    async def remove(self, caller: Caller, name: str) -> None:
        """Remove a name of the caller's; jobs that were accepted with it keep its file.

        Raise `Forbidden`, and `AdapterNotFound` if the caller has no adapter of that name.
        """
        self.check_allowed(caller)
        await asyncio.to_thread(self._names.store.remove, caller.scope, name)
        self._names.forget()

    def _publish(self, body: Body, name: str, tenant: str | None) -> AdapterEntry:
        with TemporaryDirectory(prefix="diffuserve-adapter-") as folder:
            path = Path(folder, f"{name}.safetensors")
            path.write_bytes(body)
            try:
                return self._names.store.add(path, name, tenant)
            except InvalidAdapter as error:
                raise InvalidParams("file", path.name, str(error).removeprefix(f"{path}: ")) from error


def _check_plan(plan: Plan, others: list[AdapterEntry], num_bytes: int) -> None:
    """Raise `AdaptersFull` if one more adapter of so many bytes exceeds a plan."""
    count, total = len(others), sum(entry.num_bytes for entry in others)
    most, max_bytes = plan.max_adapters, plan.max_adapters_bytes
    if (most is None or count < most) and (max_bytes is None or total + num_bytes <= max_bytes):
        return
    allowed = "any number" if most is None else f"{most:,}"
    size = "any number of" if max_bytes is None else f"{max_bytes:,}"
    raise AdaptersFull(
        f"{count:,} other adapters of {total:,} bytes are yours, and this one has {num_bytes:,}; the plan "
        f"{plan.name!r} allows {allowed} of {size} bytes: delete some with DELETE /v1/adapters/NAME"
    )
