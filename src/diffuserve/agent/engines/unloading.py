"""The choice of the models to unload for another one: a pure function of the models in memory."""

from collections.abc import Iterable
from dataclasses import dataclass

DEFAULT_SHARE = 0.6
"""Share of a device's memory for weights, where no bytes are given: steps and decoding need the rest."""


@dataclass(frozen=True)
class ModelInMemory:
    """A model in memory: the bytes of its weights, and the number of its last use, which grows."""

    name: str
    num_bytes: int
    last_use: int


def choose_unloads(in_memory: Iterable[ModelInMemory], num_bytes: int, budget: int | None) -> list[str]:
    """Return the least recently used models that must be unloaded before one of `num_bytes` fits.

    Without a budget all may stay. A model that exceeds the budget by itself fits once all others are
    unloaded.
    """
    by_use = sorted(in_memory, key=lambda model: (model.last_use, model.name))
    if budget is None:
        return []
    excess = sum(model.num_bytes for model in by_use) + num_bytes - budget
    chosen = []
    for model in by_use:
        if excess <= 0:
            break
        chosen.append(model.name)
        excess -= model.num_bytes
    return chosen


def is_too_large(num_bytes: int, budget: int | None) -> bool:
    """Return whether a model does not fit even by itself."""
    return budget is not None and num_bytes > budget
