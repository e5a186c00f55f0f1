"""One text for a prompt and a seed, so that whoever tries again gets the same image."""

import asyncio
import hashlib
import json
from collections import OrderedDict

from diffuserve.prompts.base import Expansion, ExpansionOutcome, PromptExpander


class CachedExpander:
    """Remembers what another expander wrote; equal calls at the same time are one call to it.

    Failures are not remembered. At most `max_entries` texts are kept, the ones used last. Owns the
    other expander. For one event loop.
    """

    def __init__(self, expander: PromptExpander, *, max_entries: int = 4_096) -> None:
        self.identity = expander.identity
        self._expander = expander
        self._max_entries = max_entries
        self._kept: OrderedDict[str, Expansion] = OrderedDict()
        self._under_way: dict[str, asyncio.Task[Expansion]] = {}

    async def expand(self, prompt: str, seed: int) -> Expansion:
        key = cache_key(self.identity, prompt, seed)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        if key not in self._under_way:
            self._under_way[key] = asyncio.create_task(self._ask(key, prompt, seed))
        # Who stops waiting must not take the text away from the others.
        return await asyncio.shield(self._under_way[key])

    async def close(self) -> None:
        """Whoever still waits is cancelled."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._expander.close()

    async def _ask(self, key: str, prompt: str, seed: int) -> Expansion:
        try:
            expansion = await self._expander.expand(prompt, seed)
        finally:
            del self._under_way[key]
        if expansion.outcome is ExpansionOutcome.EXPANDED:
            self._keep(key, expansion)
        return expansion

    def _keep(self, key: str, expansion: Expansion) -> None:
        self._kept[key] = expansion
        if len(self._kept) > self._max_entries:
            self._kept.popitem(last=False)


def cache_key(identity: str, prompt: str, seed: int) -> str:
    """Equal for equal questions alone, and shows no prompt."""
    return hashlib.sha256(json.dumps([identity, prompt, seed]).encode()).hexdigest()
