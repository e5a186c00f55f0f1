"""Changes of snapshots: what turns one state of plain JSON values into the next, and nothing else.

A change of an object has `set`, its new and replaced values by name, `removed`, the names that are gone, and
`in`, the changes of values that are objects or lists themselves. Items of a list are told by their `id`: its
change has `removed`, the ids that are gone, `in`, changes of items by id, `order`, the ids that stay, if they
change places, and `added`, new items with their places. What is empty is left out. A list of anything else
is replaced as a whole. `static/deltas.js` applies changes as `apply` does.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

Json = Any
Change = dict[str, Any]


def delta(old: Mapping[str, Json], new: Mapping[str, Json]) -> Change:
    """Return the change from `old` to `new`, `{}` if they are equal: `apply(delta(old, new), old) == new`."""
    set_values: dict[str, Json] = {}
    nested: dict[str, Change] = {}
    for name, value in new.items():
        change = _nested_delta(old[name], value) if name in old else None
        if change:
            nested[name] = change
        elif change is None and not (name in old and _same(old[name], value)):
            set_values[name] = value
    removed = [name for name in old if name not in new]
    return _without_empty({"set": set_values, "removed": removed, "in": nested})


def apply(change: Change, old: Json) -> Json:
    """Return what `old` has become. Parts without a change are shared, and nothing is changed in place."""
    return _apply_to_list(change, old) if isinstance(old, list) else _apply_to_object(change, old)


def _is_written_alike(old: Json, new: Json) -> bool:
    """Return true for equal values, but not for all of them: their names may be in another order."""
    return orjson.dumps(old) == orjson.dumps(new)


def _same(old: Json, new: Json) -> bool:
    """Return whether two values are written alike; to Python true is 1 as well."""
    if isinstance(old, dict) and isinstance(new, dict):
        return old.keys() == new.keys() and all(_same(value, new[name]) for name, value in old.items())
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_same, old, new))
    return bool(old == new) and isinstance(old, bool) is isinstance(new, bool)


def _nested_delta(old: Json, new: Json) -> Change | None:
    """Return the change of an object or of a list of items with ids, `None` for a value to be replaced."""
    if isinstance(old, dict) and isinstance(new, dict):
        return delta(old, new)
    if isinstance(old, list) and isinstance(new, list):
        old_items, new_items = _by_id(old), _by_id(new)
        if old_items is not None and new_items is not None:
            return _delta_of_items(old_items, new_items)
    return None


def _by_id(items: Sequence[Json]) -> dict[str, Json] | None:
    """Return the items by id, `None` if one has none, or two have the same."""
    found = {item["id"]: item for item in items if isinstance(item, dict) and isinstance(item.get("id"), str)}
    return found if len(found) == len(items) else None


def _delta_of_items(old: Mapping[str, Json], new: Mapping[str, Json]) -> Change:
    changed = [
        item_id
        for item_id, item in new.items()
        if item_id in old and not _is_written_alike(old[item_id], item)
    ]
    changes = {item_id: delta(old[item_id], new[item_id]) for item_id in changed}
    nested = _without_empty(changes)
    kept = [item_id for item_id in new if item_id in old]
    return _without_empty(
        {
            "removed": [item_id for item_id in old if item_id not in new],
            "in": nested,
            "order": [] if kept == [item_id for item_id in old if item_id in new] else kept,
            "added": [[place, item] for place, item in enumerate(new.values()) if item["id"] not in old],
        }
    )


def _without_empty(change: Change) -> Change:
    return {name: part for name, part in change.items() if part}


def _apply_to_object(change: Change, old: Mapping[str, Json]) -> dict[str, Json]:
    removed, nested = set(change.get("removed", ())), change.get("in", {})
    kept = {
        name: apply(nested[name], value) if name in nested else value
        for name, value in old.items()
        if name not in removed
    }
    return {**kept, **change.get("set", {})}


def _apply_to_list(change: Change, old: Sequence[Json]) -> list[Json]:
    removed, nested = set(change.get("removed", ())), change.get("in", {})
    items = {
        item["id"]: apply(nested[item["id"]], item) if item["id"] in nested else item
        for item in old
        if item["id"] not in removed
    }
    listed = [items[item_id] for item_id in change.get("order", items)]
    for place, item in change.get("added", ()):
        listed.insert(place, item)
    return listed
