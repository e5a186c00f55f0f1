"""Ids of workers, which say with which API key a worker registered, and of their attempts at jobs."""

import hashlib
import re
import secrets
from functools import lru_cache

_OWNED_ID = re.compile(r"worker_([0-9a-f]{8})_[0-9a-f]+")


def new_worker_id(key_id: str) -> str:
    """Return a new id of a worker that registers with this API key; it names the key by a hash."""
    return f"worker_{_mark_of(key_id)}_{secrets.token_hex(8)}"


def owner_prefix(worker_id: str) -> str:
    """Return what the ids of all workers that registered with a worker's API key begin with."""
    return f"{worker_id.rpartition('_')[0]}_"


def is_owned(worker_id: str, key_id: str) -> bool:
    """Return whether a worker registered with this API key, as its id says."""
    owned = _OWNED_ID.fullmatch(worker_id)
    return owned is not None and owned[1] == _mark_of(key_id)


def attempt_id(job_id: str, lease_token: int) -> str:
    """Return the unique name of one attempt at a job."""
    return f"{job_id}-{lease_token}"


@lru_cache(1_024)
def _mark_of(key_id: str) -> str:
    return hashlib.sha256(key_id.encode()).hexdigest()[:8]
