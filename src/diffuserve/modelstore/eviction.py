"""The choice of the models to evict from a cache: pure functions of values."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class CachedModel:
    """A model in a cache, whole or in part; one that is in use stays."""

    hash: str
    num_bytes: int
    last_used_at: float
    is_in_use: bool


def choose_victims(models: Sequence[CachedModel], bytes_to_free: int) -> list[CachedModel] | None:
    """Return the least recently used models that together free so many bytes; `None` if all are not enough.

    Models in use are never chosen.
    """
    victims = list[CachedModel]()
    unused = (model for model in models if not model.is_in_use)
    for model in sorted(unused, key=lambda model: (model.last_used_at, model.hash)):
        if bytes_to_free <= 0:
            break
        victims.append(model)
        bytes_to_free -= model.num_bytes
    return victims if bytes_to_free <= 0 else None
