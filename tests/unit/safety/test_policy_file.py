"""Policy files are validated strictly, and none can loosen `sexual_minors`."""

import re
from pathlib import Path

import pytest

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.safety import Action
from diffuserve.safety.policies.policy import MINORS
from diffuserve.safety.policies.policy_file import load_policy, parse_policy
from diffuserve.safety.policies.rules import Rules

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "safety.md"
LEAST = """
version: 1
name: mine
revision: "7"
lists:
  minors: [child]
  sexual_words: [nude]
categories:
  sexual_minors: {action: block, threshold: 0.5, combinations: [[minors, sexual_words]]}
"""


def test_the_shipped_policy_has_the_six_categories() -> None:
    policy = load_policy()
    assert set(policy.categories) == {
        "sexual_minors", "sexual", "hate", "violence", "self_harm", "harassment"
    }  # fmt: skip
    assert set(policy.thresholds) == set(policy.categories)


def test_a_small_policy_is_enough() -> None:
    policy = parse_policy(LEAST)
    assert (policy.name, policy.revision) == ("mine", "7")
    assert policy.categories_for("acme")[0].action is Action.BLOCK


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LEAST.replace("version: 1", "version: 2"), "p.yaml: version=2: write version: 1"),
        (LEAST.replace("block", "blok"), "p.yaml: categories.sexual_minors.action='blok': must be one of"),
        (LEAST.replace("action: block", "action: flag"), "this category always blocks"),
        (LEAST.replace("sexual_minors:", "other:"), "every policy needs this category"),
        (LEAST.replace(", combinations: [[minors, sexual_words]]", ""), "has no rule"),
        (LEAST.replace("[[minors, sexual_words]]", "[[minors, sexy]]"), "[0][1]='sexy': no such word list"),
        (LEAST.replace("[[minors, sexual_words]]", "[[minors]]"), "name two word lists or more"),
        (LEAST.replace("0.5", "1.5"), "threshold=1.5: must be a score above 0"),
        (LEAST.replace("[child]", "[no]"), "lists.minors[0]=False: must be text; put it in quotes"),
        (LEAST.replace("[child]", "['!!']"), "a term needs letters or digits"),
        (LEAST.replace("[child]", "child"), "must be a"),
        (LEAST.replace("revision: \"7\"", "revision: 7"), "revision=7: must be text"),
        (LEAST.replace("[child]", "{stems: [a child]}"), "minors.stems[0]='a child': a stem is"),
        (LEAST.replace("[[minors, sexual_words]]", "[['young_*', sexual_words]]"), "no such word list"),
        (LEAST + "unreadable: block", "unreadable='block': must be one of allow, flag, refuse"),
        (LEAST + "extra: 1", "extra=1: no such key"),
        (LEAST + "name: twice", "'name' stands twice"),
        (LEAST + "tenants: {a: {violence: {action: allow}}}", "no such category"),
        (LEAST + "tenants: {a: {sexual_minors: {action: allow}}}", "no tenant can loosen"),
        (LEAST + "tenants: {a: {sexual_minors: {threshold: 0.6}}}", "no tenant can loosen"),
        ("extends: base", "only the shipped policy"),
        ("[1]", "must be a mapping"),
        ("{", "is not YAML"),
    ],
)  # fmt: skip
def test_errors_name_the_place_and_the_remedy(text: str, said: str) -> None:
    with pytest.raises(InvalidParams, match=re.escape(said)):
        parse_policy(text, "p.yaml")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidParams, match=r"none\.yaml.*cannot be read"):
        load_policy(tmp_path / "none.yaml")


def test_tenants_have_their_own_actions_and_thresholds() -> None:
    policy = parse_policy(
        "extends: default\ntenants: {a.b: {violence: {action: allow}, hate: {threshold: 0.9}}}"
    )
    own = {category.name: category for category in policy.categories_for("a.b")}
    assert own["violence"].action is Action.ALLOW
    assert own["hate"].threshold == 0.9
    assert policy.categories["violence"].action is Action.BLOCK


def test_a_tenant_may_tighten_sexual_minors() -> None:
    policy = parse_policy(LEAST + "tenants: {a: {sexual_minors: {threshold: 0.3}}}")
    assert policy.categories_for("a")[0].threshold == 0.3


def test_a_refused_pattern_is_named_with_its_place() -> None:
    text = LEAST + "  rude: {action: flag, patterns: ['(?<!not )rude']}"
    with pytest.raises(InvalidParams, match=re.escape("p.yaml: categories.rude.patterns[0]='(?<!not )rude'")):
        parse_policy(text, "p.yaml")


@pytest.mark.parametrize(
    ("group", "word"), [(r"(rude)\\1", "no backreferences"), ("(?P<a>x)(?P=a)", "RE2 knows")]
)
def test_a_pattern_with_a_backreference_is_refused_when_the_policy_is_read(group: str, word: str) -> None:
    text = LEAST + f'  rude: {{action: flag, patterns: ["{group}"]}}'
    with pytest.raises(InvalidParams, match=rf"p\.yaml: categories\.rude\.patterns\[0\]=.*{word}"):
        parse_policy(text, "p.yaml")


@pytest.mark.parametrize(
    ("option", "action"),
    [("", Action.FLAG), ("unreadable: allow", Action.ALLOW), ("unreadable: refuse", Action.BLOCK)],
)
def test_a_policy_says_what_follows_for_text_that_it_cannot_read(option: str, action: Action) -> None:
    assert parse_policy(LEAST + option).unreadable is action


def test_every_policy_in_the_documentation_loads() -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    policies = [parse_policy(block, "safety.md") for block in blocks]
    assert policies
    assert all(MINORS in policy.categories and Rules(policy) for policy in policies)
