"""The page applies changes of snapshots as the server does."""

import json
import random
from typing import Any

from playwright.sync_api import Page

from diffuserve.domain.deltas import apply, delta

_IDS = ("a", "b", "7", "12", "__proto__", "constructor")
_SCALARS = (None, True, False, 0, 1, 2.5, "", "a")
_APPLY = """async (cases) => {
  const entry = document.querySelector("script[type=module]").src;
  const { apply } = await import(new URL("deltas.js", entry));
  return cases.map(({ change, old }) => JSON.stringify(apply(JSON.parse(change), JSON.parse(old))));
}"""


def any_value(chance: random.Random, depth: int) -> Any:
    """Return a random value, often a list of objects with ids."""
    kind = chance.random()
    if depth == 0 or kind < 0.4:
        return chance.choice(_SCALARS)
    if kind < 0.6:
        return {chance.choice(_IDS): any_value(chance, depth - 1) for _ in range(chance.randrange(4))}
    if kind < 0.9:
        ids = chance.sample(_IDS, chance.randrange(5))
        return [{"id": item_id, "step": any_value(chance, depth - 1)} for item_id in ids]
    return [any_value(chance, depth - 1) for _ in range(chance.randrange(3))]


def any_state(chance: random.Random) -> dict[str, Any]:
    return {name: any_value(chance, 3) for name in ("workers", "lanes", "__proto__")}


def test_both_apply_the_same_changes(page: Page) -> None:
    chance, states = random.Random(7), []
    for _ in range(300):
        states.append((old := any_state(chance), any_state(chance) | chance.choice([{}, old])))
    changes = [delta(old, new) for old, new in states]
    page.goto("/")
    cases = [
        {"change": json.dumps(change), "old": json.dumps(old)}
        for change, (old, _) in zip(changes, states, strict=True)
    ]
    found = [json.loads(text) for text in page.evaluate(_APPLY, cases)]
    assert found == [new for _, new in states]
    assert found == [apply(change, old) for change, (old, _) in zip(changes, states, strict=True)]
