"""Changes of snapshots, in Python and in the page's own words."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from diffuserve.domain.deltas import apply, delta

NAMES = st.sampled_from(["id", "step", "at", "jobs", "workers", "__proto__", "7"])
FRACTIONS = st.floats(-1, 1).filter(lambda value: not value.is_integer())  # 1.0 and 1 are one number
SCALARS = st.none() | st.booleans() | st.integers(-2, 2) | FRACTIONS | st.sampled_from(["", "a", "id"])


def items(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Lists of objects with ids, of which few are the same."""
    ids = st.sampled_from(["a", "b", "c", "__proto__", "7", "12"])
    item = st.builds(named, st.dictionaries(NAMES, values, max_size=3), ids)
    return st.lists(item, unique_by=lambda item: item["id"])


def named(fields: dict[str, Any], item_id: str) -> dict[str, Any]:
    return fields | {"id": item_id}


VALUES = st.recursive(
    SCALARS,
    lambda values: st.dictionaries(NAMES, values, max_size=3) | items(values) | st.lists(values, max_size=3),
    max_leaves=12,
)
SNAPSHOTS = st.dictionaries(NAMES, VALUES, max_size=4)


def written(value: object) -> str:
    """Return the value as JSON, where true is not 1; the order of names does not count."""
    return json.dumps(value, sort_keys=True)


@given(old=SNAPSHOTS, new=SNAPSHOTS)
def test_a_change_turns_one_state_into_the_next(old: dict[str, Any], new: dict[str, Any]) -> None:
    before = written(old)
    change = json.loads(json.dumps(delta(old, new)))
    assert written(apply(change, old)) == written(new)
    assert written(old) == before


@given(state=SNAPSHOTS)
def test_equal_states_have_no_change(state: dict[str, Any]) -> None:
    assert delta(state, json.loads(json.dumps(state))) == {}


def test_a_step_of_one_job_is_a_small_change() -> None:
    old = {"workers": [{"id": f"worker_{n}", "jobs": [{"id": f"job_{n}", "step": 1}]} for n in range(200)]}
    new = json.loads(json.dumps(old))
    new["workers"][7]["jobs"][0]["step"] = 2
    change = {
        "in": {"workers": {"in": {"worker_7": {"in": {"jobs": {"in": {"job_7": {"set": {"step": 2}}}}}}}}}
    }
    assert delta(old, new) == change


def test_items_keep_their_places() -> None:
    old = {"lanes": [{"id": "a"}, {"id": "b"}, {"id": "c"}]}
    new = {"lanes": [{"id": "0"}, {"id": "c"}, {"id": "b"}, {"id": "d"}]}
    change = {"removed": ["a"], "order": ["c", "b"], "added": [[0, {"id": "0"}], [3, {"id": "d"}]]}
    assert delta(old, new) == {"in": {"lanes": change}}
    assert apply(delta(old, new), old) == new


def test_parts_without_a_change_are_shared() -> None:
    old = {"workers": [{"id": "a", "jobs": []}], "queue": {"num_ready": 1}}
    new = {"workers": [{"id": "a", "jobs": []}], "queue": {"num_ready": 2}}
    assert apply(delta(old, new), old)["workers"] is old["workers"]
