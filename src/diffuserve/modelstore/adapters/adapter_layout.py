"""The layout of a store of adapters: the same in a bucket and in a folder.

    adapters/blobs/DIGEST.safetensors    the file, by the SHA-256 of its content
    adapters/names/OWNER/NAME.json       the entry that names it
    adapters/removed/DIGEST              to be looked at some day: a name of it was removed, or a push began

The name is written last and removed first, so that what is listed is complete. A file outlives its last name
for a while: jobs keep what they were accepted with.
"""

import hashlib

from diffuserve.domain.requests.adapter_use import ADAPTER_NAME

BLOBS = "adapters/blobs"
ENTRIES = "adapters/names"
REMOVED = "adapters/removed"
PUBLIC = "public"
SUFFIX = ".safetensors"
_OWNER_DIGITS = 32


def blob_key(digest: str) -> str:
    """Return where a file is."""
    return f"{BLOBS}/{digest}{SUFFIX}"


def removed_key(digest: str) -> str:
    """Return the mark of a file of which a name was removed."""
    return f"{REMOVED}/{digest}"


def owner_folder(tenant: str | None) -> str:
    """Return the folder of a tenant's names, whose id may have any characters; without one of public ones."""
    if tenant is None:
        return f"{ENTRIES}/{PUBLIC}"
    return f"{ENTRIES}/{hashlib.sha256(tenant.encode()).hexdigest()[:_OWNER_DIGITS]}"


def entry_key(tenant: str | None, name: str) -> str:
    """Return where the entry of a name is. Raise `ValueError` for what is no name of an adapter."""
    if not ADAPTER_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of an adapter")
    return f"{owner_folder(tenant)}/{name}.json"
