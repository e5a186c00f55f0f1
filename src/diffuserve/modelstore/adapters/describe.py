"""Describes an adapter file by its header, before it gets a name. Importing this loads no torch."""

import hashlib
import time
from pathlib import Path

from diffuserve.domain.models.adapter_entry import AdapterEntry
from diffuserve.models.adapters.files.adapter_file import open_adapter
from diffuserve.models.adapters.files.base_layers import plan_for, plan_without_base
from diffuserve.models.folders.folder import ModelFolder


def describe_adapter(
    path: Path, name: str, tenant: str | None = None, base: ModelFolder | None = None
) -> AdapterEntry:
    """Return the entry of a file that gets a name; with a `base` it must have the shapes of its layers.

    Raise `InvalidAdapter` for a file that is no adapter, or for another model, with the tensor's name.
    """
    file = open_adapter(path)
    if base is None:
        families, plan = plan_without_base(file)
    else:
        plan = plan_for(file, base)
        families = (plan.family,)
    with path.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    return AdapterEntry(
        name=name,
        tenant=tenant,
        digest=digest,
        num_bytes=path.stat().st_size,
        families=families,
        model=None if base is None else base.name,
        rank=plan.rank,
        num_layers=sum(len(pairs) for pairs in plan.pairs.values()),
        created_at=time.time(),
    )
