"""What a store knows of an adapter, and where: the same in a bucket and in a folder.

    adapters/blobs/DIGEST.safetensors    the file, by the SHA-256 of its content
    adapters/names/OWNER/NAME.json       the entry that names it
    adapters/removed/DIGEST              a name of it was removed, at the time of this object

The name is written last and removed first, so that what is listed is complete. A file outlives its last name
for a while: jobs keep what they were accepted with.
"""

import hashlib
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, TypeAdapter

from diffuserve.domain.requests.adapter_use import ADAPTER_NAME
from diffuserve.domain.text.path_parts import FileName, Sha256
from diffuserve.models.adapters.files.adapter_file import MAX_BYTES, MAX_RANK

BLOBS = "adapters/blobs"
ENTRIES = "adapters/names"
REMOVED = "adapters/removed"
PUBLIC = "public"
SUFFIX = ".safetensors"
MAX_ENTRY_BYTES = 16_384
MAX_LAYERS = 20_000
_OWNER_DIGITS = 32

Text = Annotated[str, Field(min_length=1, max_length=200)]


@dataclass(frozen=True, kw_only=True)
class AdapterEntry:
    """An adapter that has a name: everyone's, or the `tenant`'s alone.

    `families` are those whose layers the file names, of `LAYOUTS`; `model` is the one that it was checked
    against, if any. `rank` is its largest. `created_at` are seconds since the epoch.
    """

    name: FileName
    tenant: Text | None = None
    digest: Sha256
    num_bytes: Annotated[int, Field(ge=1, le=MAX_BYTES)]
    families: Annotated[tuple[Text, ...], Field(min_length=1, max_length=20)]
    model: Text | None = None
    rank: Annotated[int, Field(ge=1, le=MAX_RANK)]
    num_layers: Annotated[int, Field(ge=1, le=MAX_LAYERS)]
    created_at: float

    @property
    def key(self) -> str:
        """Return where the entry is."""
        return entry_key(self.tenant, self.name)

    def to_json(self) -> bytes:
        """Return the entry as it is stored."""
        return TypeAdapter(AdapterEntry).dump_json(self, indent=1)


def blob_key(digest: str) -> str:
    """Return where a file is."""
    return f"{BLOBS}/{digest}{SUFFIX}"


def removed_key(digest: str) -> str:
    """Return the mark of a file of which a name was removed."""
    return f"{REMOVED}/{digest}"


def owner_folder(tenant: str | None) -> str:
    """Return the folder of the names of a tenant, whose id may have any characters; without one the public."""
    if tenant is None:
        return f"{ENTRIES}/{PUBLIC}"
    return f"{ENTRIES}/{hashlib.sha256(tenant.encode()).hexdigest()[:_OWNER_DIGITS]}"


def entry_key(tenant: str | None, name: str) -> str:
    """Return where the entry of a name is. Raise `ValueError` for what is no name of an adapter."""
    if not ADAPTER_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of an adapter")
    return f"{owner_folder(tenant)}/{name}.json"
