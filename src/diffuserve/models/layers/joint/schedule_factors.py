"""Modulation factors of whole schedules, computed at a request's first step."""

import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence

from cachetools import LRUCache
from jaxtyping import Float
from torch import Tensor

_CACHE_BYTES = 256 * 2**20
_MAX_AHEAD_BYTES = _CACHE_BYTES // 16  # per request, so that those of many requests fit

_Key = tuple[Hashable, float]
MakeFactors = Callable[[Sequence[float]], Float[Tensor, "timesteps factors own_d"]]


class ScheduleFactors:
    """Computes the factors of a request's next steps in one product, and caches them.

    A product over the rows of all steps costs hardly more than one over a single row, and later steps find
    their factors in the cache. Denoising threads share the cache. `row_bytes` is the size of one step's.
    """

    def __init__(self, row_bytes: int) -> None:
        self._row_bytes = row_bytes
        self._kept: LRUCache[_Key, Tensor] = LRUCache(_CACHE_BYTES, getsizeof=lambda row: row.nbytes)
        self._keys: defaultdict[int, set[_Key]] = defaultdict(set)  # by the id of the prompt's tensor
        self._lock = threading.RLock()  # a prompt may be freed while its thread holds the lock

    def of(
        self, condition: Hashable, timesteps: Sequence[float], make: MakeFactors
    ) -> Float[Tensor, "1 factors own_d"]:
        """Return the factors of the first of `timesteps`, those of the request's remaining steps.

        They depend on nothing but the condition and the timestep.
        """
        with self._lock:
            if (row := self._kept.get((condition, timesteps[0]))) is not None:
                return row
        ahead = timesteps[: max(1, _MAX_AHEAD_BYTES // self._row_bytes)]
        rows = make(ahead).split(1)
        with self._lock:
            self._kept.update({(condition, at): row for at, row in zip(ahead, rows, strict=True)})
        return rows[0]

    def of_prompt(
        self, prompt: Tensor, condition: Hashable, timesteps: Sequence[float], make: MakeFactors
    ) -> Float[Tensor, "1 factors own_d"]:
        """Return factors that depend on a prompt's tensor too; they are dropped with it."""
        with self._lock:
            if id(prompt) not in self._keys:
                weakref.finalize(prompt, self._forget, id(prompt))  # before another tensor can get this id
            self._keys[id(prompt)].update(((id(prompt), condition), at) for at in timesteps)
        return self.of((id(prompt), condition), timesteps, make)

    def _forget(self, prompt: int) -> None:
        with self._lock:
            for key in self._keys.pop(prompt, ()):
                self._kept.pop(key, None)
