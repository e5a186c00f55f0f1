"""The shipped filter on the labelled prompts, as documented."""

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diffuserve.cli.servers.demo_scenes import SCENES
from diffuserve.safety.policies.folding import fold
from diffuserve.safety.policies.policy_file import load_policy

ROOT = Path(__file__).parents[3]
RESULTS: dict[str, Any] = json.loads((ROOT / "training/prompt_filter/results.json").read_text())
PAGE = (ROOT / "docs/reference/safety.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Import `training` from the repository's root, since it is not part of the package."""
    monkeypatch.syspath_prepend(str(ROOT))


def evaluate() -> Any:
    return importlib.import_module("training.prompt_filter.evaluate")


def held_out_half() -> Any:
    return importlib.import_module("training.prompt_filter.labelled").HELD_OUT


def test_there_are_enough_prompts_and_held_out_ones_are_in_no_other_set() -> None:
    prompts, half = evaluate().labelled_prompts(), held_out_half()
    held_out = {fold(item.prompt).spelled for item in prompts if item.half == half}
    others = {fold(item.prompt).spelled for item in prompts if item.half != half}
    assert len(held_out) > 100
    assert len(others) > 400
    assert not held_out & others


def test_what_was_measured_still_holds() -> None:
    module = evaluate()
    prompts, both = module.labelled_prompts(), module.filters()["both"]
    for half, measured in RESULTS["halves"].items():
        now = module.figures(module.judge_all(both, module.of_half(prompts, half)))
        assert now == measured["both"], f"{half}: run python -m training.prompt_filter.evaluate"


def test_no_set_falls_below_its_minimum() -> None:
    for half, measured in RESULTS["halves"].items():
        both = measured["both"]
        assert both["categories"]["sexual_minors"]["share"] == 1.0
        assert both["safe"]["share"] <= 0.05
        assert half == "fourth" or both["unsafe"]["share"] >= 0.95
    assert RESULTS["halves"]["fourth"]["both"]["unsafe"]["share"] >= 0.9


def test_harmless_short_prompts_pass() -> None:
    now = evaluate().short_shares(evaluate().filters()["both"])
    assert now == RESULTS["short"]["both"], "run python -m training.prompt_filter.evaluate"
    assert sum(by_set["prompts"] for by_set in now.values()) >= 1_000
    assert all(by_set["share"] <= 0.01 for by_set in now.values())


def test_what_the_demo_draws_passes() -> None:
    module = evaluate()
    labelled = importlib.import_module("training.prompt_filter.labelled").Labelled
    prompts = [scene.prompt for scenes in SCENES.values() for scene in scenes]
    demo = [labelled(prompt, frozenset(), "plain", "demo") for prompt in prompts]
    judged = module.judge_all(module.filters()["both"], demo)
    assert [item.prompt for item, verdict in judged if module.is_caught(verdict)] == []


def test_the_page_has_the_measured_tables() -> None:
    module = evaluate()
    assert module.short_table(RESULTS["short"]) in PAGE
    for half in ("first", held_out_half()):
        assert module.table(RESULTS["halves"][half], module.rows_by_category) in PAGE
    assert module.latency_table(RESULTS["latency_ms"]) in PAGE


def test_the_page_has_the_default_thresholds() -> None:
    for category in load_policy().categories.values():
        assert f"| `{category.name}` | `{category.action}` | {category.threshold} |" in PAGE


def test_training_excludes_the_labelled_prompts() -> None:
    corpus = importlib.import_module("training.prompt_filter.corpus")
    train = importlib.import_module("training.prompt_filter.train")
    examples = corpus.Corpus(load_policy()).draw_many(300, 100, seed=train.SEED)
    measured = {fold(item.prompt).spelled for item in evaluate().labelled_prompts()}
    kept = {fold(item.prompt).spelled for item in train.without_measured(examples)}
    assert not kept & measured


def test_training_learns_to_tell_categories_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = importlib.import_module("training.prompt_filter.corpus")
    train = importlib.import_module("training.prompt_filter.train")
    monkeypatch.setattr(train, "NUM_STEPS", 10)
    policy = load_policy()
    table = train.tabulate(corpus.Corpus(policy).draw_many(60, 20, seed=1), corpus.labels(policy))
    before, after = (train.gradient(table, weights)[1] for weights in _before_and_after(train, table))
    assert after < before / 2


def _before_and_after(train: Any, table: Any) -> list[Any]:
    weights, bias = train.fit(table)
    fitted = np.vstack((weights, bias))
    return [np.zeros_like(fitted), fitted]
