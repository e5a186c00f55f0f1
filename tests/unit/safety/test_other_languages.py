"""The shipped filter on prompts in other languages, and in disguise, as documented."""

import importlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from diffuserve.safety.policies.policy import MINORS

ROOT = Path(__file__).parents[3]
RESULTS: dict[str, Any] = json.loads((ROOT / "training/prompt_filter/results_languages.json").read_text())
PAGE = (ROOT / "docs/reference/safety.md").read_text(encoding="utf-8")
MIN_RECALL = 0.95
MIN_HELD_OUT_RECALL = 0.8
MAX_WRONGLY_BLOCKED = 0.02


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Import `training` from the repository's root, since it is not part of the package."""
    monkeypatch.syspath_prepend(str(ROOT))


def module() -> Any:
    return importlib.import_module("training.prompt_filter.evaluate_languages")


@pytest.mark.parametrize("kind", ["languages", "languages_held_out"])
def test_there_are_prompts_of_both_kinds_in_many_languages(kind: str) -> None:
    prompts = module().prompts_by_language(kind)
    unsafe = Counter(item.hard for item in prompts if MINORS in item.labels)
    safe = Counter(item.hard for item in prompts if not item.labels)
    assert len(prompts) >= 200
    assert len(unsafe) >= 20
    assert unsafe.keys() == safe.keys()


@pytest.mark.parametrize(
    "kind", ["languages", "languages_held_out", pytest.param("disguises", marks=pytest.mark.slow)]
)
def test_what_was_measured_still_holds(kind: str) -> None:
    now = module().measure_kind(kind)
    assert now == RESULTS[kind], "run python -m training.prompt_filter.evaluate_languages"


@pytest.mark.parametrize("kind", ["languages", "disguises"])
def test_few_are_missed_and_few_are_wrongly_blocked(kind: str) -> None:
    counts = RESULTS[kind]["rules"]["all"]
    assert counts["recognized"] >= MIN_RECALL * counts["unsafe"]
    assert counts["wrongly_blocked"] <= MAX_WRONGLY_BLOCKED * counts["safe"]


def test_the_held_out_figures_are_no_worse_than_they_were() -> None:
    counts = RESULTS["languages_held_out"]["both"]["all"]
    assert counts["recognized"] >= MIN_HELD_OUT_RECALL * counts["unsafe"]
    assert counts["wrongly_blocked"] <= MAX_WRONGLY_BLOCKED * counts["safe"]


def test_every_language_and_disguise_is_recognized() -> None:
    for kind in ("languages", "disguises"):
        for counts in RESULTS[kind]["rules"].values():
            assert counts["recognized"] >= 0.8 * counts["unsafe"]


def test_the_page_has_the_measured_tables() -> None:
    for kind in ("languages", "languages_held_out"):
        assert module().table(RESULTS[kind], ["all"]) in PAGE
    assert module().table(RESULTS["disguises"]) in PAGE
