"""The cache of expanded prompts."""

import asyncio
from dataclasses import dataclass, field

import pytest

from diffuserve.prompts.base import Expansion, ExpansionOutcome
from diffuserve.prompts.cache import CachedExpander, cache_key


@dataclass
class Writer:
    """An expander that counts its calls, and blocks them while `gate` is not set."""

    identity: str = "writer"
    outcome: ExpansionOutcome = ExpansionOutcome.EXPANDED
    calls: list[tuple[str, int]] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    is_closed: bool = False

    async def expand(self, prompt: str, seed: int) -> Expansion:
        self.calls.append((prompt, seed))
        await self.gate.wait()
        return Expansion(f"{prompt} #{len(self.calls)}", self.outcome)

    async def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def writer() -> Writer:
    writer = Writer()
    writer.gate.set()
    return writer


async def test_the_same_prompt_and_seed_give_the_same_text(writer: Writer) -> None:
    cached = CachedExpander(writer)
    assert await cached.expand("a cat", 1) == await cached.expand("a cat", 1)
    assert writer.calls == [("a cat", 1)]


async def test_another_seed_or_prompt_is_expanded_again(writer: Writer) -> None:
    cached = CachedExpander(writer)
    for prompt, seed in [("a cat", 1), ("a cat", 2), ("a dog", 1)]:
        await cached.expand(prompt, seed)
    assert len(writer.calls) == 3


@pytest.mark.parametrize("outcome", sorted(set(ExpansionOutcome) - {ExpansionOutcome.EXPANDED}))
async def test_a_failure_is_not_cached(writer: Writer, outcome: ExpansionOutcome) -> None:
    cached, writer.outcome = CachedExpander(writer), outcome
    await cached.expand("a cat", 1)
    writer.outcome = ExpansionOutcome.EXPANDED
    assert (await cached.expand("a cat", 1)).outcome is ExpansionOutcome.EXPANDED


async def test_concurrent_equal_calls_become_a_single_call(writer: Writer) -> None:
    cached = CachedExpander(writer)
    writer.gate.clear()
    waiting = [asyncio.create_task(cached.expand("a cat", 1)) for _ in range(10)]
    await asyncio.sleep(0)
    writer.gate.set()
    texts = await asyncio.gather(*waiting)
    assert len(writer.calls) == 1
    assert len(set(texts)) == 1


async def test_a_canceled_caller_does_not_cancel_the_others(writer: Writer) -> None:
    cached = CachedExpander(writer)
    writer.gate.clear()
    first, second = (asyncio.create_task(cached.expand("a cat", 1)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    writer.gate.set()
    assert (await second).outcome is ExpansionOutcome.EXPANDED
    assert len(writer.calls) == 1


async def test_the_least_recently_used_texts_are_evicted(writer: Writer) -> None:
    cached = CachedExpander(writer, max_entries=2)
    for prompt in ["a", "b", "a", "c", "a", "b"]:
        await cached.expand(prompt, 1)
    assert [prompt for prompt, _ in writer.calls] == ["a", "b", "c", "b"]


async def test_closing_cancels_pending_calls(writer: Writer) -> None:
    cached = CachedExpander(writer)
    writer.gate.clear()
    waiting = asyncio.create_task(cached.expand("a cat", 1))
    await asyncio.sleep(0)
    await cached.close()
    assert writer.is_closed
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_keys_of_different_arguments_differ() -> None:
    asked = [("m", "a", 1), ("m", "a", 2), ("m", "b", 1), ("n", "a", 1), ("m", 'a", 1', 1), ("ma", "", 1)]
    assert len({cache_key(*arguments) for arguments in asked}) == len(asked)
    assert len(cache_key("m", "a", 1)) == 64
