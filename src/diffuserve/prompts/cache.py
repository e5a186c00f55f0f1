"""A cache of expanded prompts, so that a retried job gets the same image."""

import asyncio
import hashlib
import json

from cachetools import LRUCache

from diffuserve.prompts.base import Expansion, ExpansionOutcome, PromptExpander


class CachedExpander:
    """Caches another expander's results; equal calls at the same time become a single call.

    Failures are not cached. The cache holds at most `max_entries` results, those used last. It owns the
    other expander, and belongs to one event loop.
    """

    def __init__(self, expander: PromptExpander, *, max_entries: int = 4_096) -> None:
        self.identity = expander.identity
        self._expander = expander
        self._cache: LRUCache[str, Expansion] = LRUCache(max_entries)
        self._pending: dict[str, asyncio.Task[Expansion]] = {}

    async def expand(self, prompt: str, seed: int) -> Expansion:
        """Return the cached expansion, or wait for the other expander's."""
        key = cache_key(self.identity, prompt, seed)
        if key in self._cache:
            return self._cache[key]
        if key not in self._pending:
            self._pending[key] = asyncio.create_task(self._expand(key, prompt, seed))
        # A canceled caller must not cancel the task that other callers wait for.
        return await asyncio.shield(self._pending[key])

    async def close(self) -> None:
        """Cancel the calls that are still pending, and close the other expander."""
        tasks = list(self._pending.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._expander.close()

    async def _expand(self, key: str, prompt: str, seed: int) -> Expansion:
        try:
            expansion = await self._expander.expand(prompt, seed)
        finally:
            del self._pending[key]
        if expansion.outcome is ExpansionOutcome.EXPANDED:
            self._cache[key] = expansion
        return expansion


def cache_key(identity: str, prompt: str, seed: int) -> str:
    """Return a sha256 in hex that differs wherever an argument does, and from which no prompt can be read."""
    return hashlib.sha256(json.dumps([identity, prompt, seed]).encode()).hexdigest()
