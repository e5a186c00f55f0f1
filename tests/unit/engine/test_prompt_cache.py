"""Conditioning of recent prompts is kept, and no more of it than was allowed."""

from hypothesis import given
from hypothesis import strategies as st

from diffuserve.engine.prompt_cache import PromptCache
from diffuserve.models.base import Conditioning


def make_conditioning(name: str) -> Conditioning:
    return Conditioning(warnings=(name,))


def test_what_was_put_is_got_and_anything_else_is_not() -> None:
    cache, conditioning = PromptCache(2), make_conditioning("a")
    cache.put(("a", 32), conditioning)
    assert cache.get(("a", 32)) is conditioning
    assert cache.get(("a", 64)) is None


def test_a_second_put_replaces_the_first() -> None:
    cache, second = PromptCache(2), make_conditioning("second")
    cache.put("a", make_conditioning("first"))
    cache.put("a", second)
    assert cache.get("a") is second


def test_the_least_recently_used_goes_first() -> None:
    cache = PromptCache(2)
    cache.put("a", make_conditioning("a"))
    cache.put("b", make_conditioning("b"))
    cache.get("a")
    cache.put("c", make_conditioning("c"))
    assert [cache.get(key) is not None for key in "abc"] == [True, False, True]


def test_putting_again_counts_as_use() -> None:
    cache = PromptCache(2)
    for key in ("a", "b", "a", "c"):
        cache.put(key, make_conditioning(key))
    assert [cache.get(key) is not None for key in "abc"] == [True, False, True]


def test_a_cache_of_size_zero_keeps_nothing() -> None:
    cache = PromptCache(0)
    cache.put("a", make_conditioning("a"))
    assert cache.get("a") is None


@given(st.integers(0, 5), st.lists(st.tuples(st.booleans(), st.sampled_from("abcdefgh")), max_size=60))
def test_it_behaves_as_a_list_in_order_of_use(size: int, actions: list[tuple[bool, str]]) -> None:
    cache, kept = PromptCache(size), list[str]()
    for is_put, key in actions:
        if is_put:
            cache.put(key, make_conditioning(key))
        found = cache.get(key)
        if is_put or key in kept:
            kept = [*(other for other in kept if other != key), key][-size:] if size else []
        assert (found is not None) == (key in kept)
        assert found is None or found.warnings == (key,)
