"""Modulation factors of whole schedules, computed at a request's first step."""

import threading
import weakref
from collections import defaultdict
from collections.abc import Sequence

import torch
from cachetools import LRUCache
from jaxtyping import Float
from torch import Tensor

from diffuserve.models.flux.transformer import FluxTransformer, Levels

_CACHE_BYTES = 256 * 2**20
_MAX_AHEAD_BYTES = _CACHE_BYTES // 16  # per request, so that those of many requests fit

_Key = tuple[int, float, float]


class ScheduleFactors:
    """Computes the factors of a request's next steps in one product, and caches them.

    A product over the rows of all steps costs hardly more than one over a single row, and later steps find
    their factors in the cache. They are dropped with their prompt's tensor. Denoising threads share the
    cache.
    """

    def __init__(self, transformer: FluxTransformer) -> None:
        self._transformer = transformer
        self._kept: LRUCache[_Key, Tensor] = LRUCache(_CACHE_BYTES, getsizeof=lambda row: row.nbytes)
        self._keys: defaultdict[int, set[_Key]] = defaultdict(set)  # by the id of the prompt's tensor
        self._lock = threading.RLock()  # a prompt may be freed while its thread holds the lock

    def of(
        self, pooled: Float[Tensor, "pooled_dim"], guidance: float, timesteps: Sequence[float]
    ) -> Float[Tensor, "1 factors own_d"]:
        """Return the factors of the first of `timesteps`, those of the request's remaining steps."""
        key = (id(pooled), guidance, timesteps[0])
        with self._lock:
            if (row := self._kept.get(key)) is not None:
                return row
        ahead = timesteps[: max(1, _MAX_AHEAD_BYTES // self._row_bytes(pooled))]
        rows = self._make(pooled, guidance, ahead).split(1)
        with self._lock:
            self._keep(pooled, {(id(pooled), guidance, at): row for at, row in zip(ahead, rows, strict=True)})
        return rows[0]

    def _keep(self, pooled: Tensor, rows: dict[_Key, Tensor]) -> None:
        if id(pooled) not in self._keys:
            weakref.finalize(pooled, self._forget, id(pooled))  # before another tensor can get this id
        self._keys[id(pooled)].update(rows)
        self._kept.update(rows)

    def _forget(self, prompt: int) -> None:
        with self._lock:
            for key in self._keys.pop(prompt, ()):
                self._kept.pop(key, None)

    def _make(self, pooled: Tensor, guidance: float, timesteps: Sequence[float]) -> Tensor:
        count, device = len(timesteps), pooled.device
        has_guidance = self._transformer.config.guidance_embeds
        levels = Levels(
            pooled=pooled.expand(count, -1),
            timestep=torch.tensor(timesteps).to(device),
            guidance=torch.full((count,), guidance).to(device) if has_guidance else None,
        )
        return self._transformer.factors(levels)

    def _row_bytes(self, pooled: Tensor) -> int:
        return self._transformer.num_factors * self._transformer.config.dim * pooled.itemsize
