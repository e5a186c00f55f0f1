"""Things that were read a moment ago."""

from diffuserve.api.cache import Cache


def test_what_was_kept_is_found_until_it_is_old() -> None:
    young: Cache[str, int] = Cache(60)
    young.keep("a", 1)
    assert (young.find("a"), young.find("b")) == (1, None)
    old: Cache[str, int] = Cache(-1)
    old.keep("a", 1)
    assert old.find("a") is None


def test_the_oldest_gives_way() -> None:
    cache: Cache[str, int] = Cache(60, max_entries=2)
    for number, name in enumerate("abac"):
        cache.keep(name, number)
    assert [cache.find(name) for name in "abc"] == [2, None, 3]
