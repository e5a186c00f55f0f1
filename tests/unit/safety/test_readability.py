"""Text that the rules cannot read is allowed, flagged or refused, as the policy says."""

import pytest

from diffuserve.domain.safety import Action
from diffuserve.safety.policies.policy import MINORS
from diffuserve.safety.policies.policy_file import load_policy, parse_policy
from diffuserve.safety.policies.readability import readable_scripts
from diffuserve.safety.prompt import UNREADABLE, PolicyFilter

SHIPPED = PolicyFilter(load_policy())
SCRIPTS = readable_scripts(load_policy())
UNREAD = [
    "ကလေး တစ်ယောက်",
    "ბავშვი ბაღში",
    "a castle, ትንሽ ልጅ, by a lake",
    "🐈🐕🦊",
    "■□▲▼",
    "\ue000\ue001\ue002",
]
READ = [
    "a red fox",
    "a cat 🐈",
    "E = mc²",
    "Ω and π",
    "λ",
    "№ 5, 20 €",
    "日本の城",
    "a fox → a den",
    "12 + 3",
    "",
    "…",
    "ბ",
]


@pytest.mark.parametrize("prompt", UNREAD)
async def test_unreadable_text_is_flagged_unless_the_policy_says_otherwise(prompt: str) -> None:
    verdict = await SHIPPED.check(prompt)
    assert (verdict.action, verdict.category) == (Action.FLAG, UNREADABLE)


@pytest.mark.parametrize(("option", "action"), [("allow", Action.ALLOW), ("refuse", Action.BLOCK)])
async def test_the_policy_may_allow_or_refuse_it(option: str, action: Action) -> None:
    policy = parse_policy(f"extends: default\nunreadable: {option}")
    assert (await PolicyFilter(policy).check(UNREAD[0])).action is action


@pytest.mark.parametrize("prompt", READ)
async def test_readable_text_is_no_finding(prompt: str) -> None:
    assert (await SHIPPED.check(prompt)).findings == ()


async def test_a_verdict_names_what_could_not_be_read() -> None:
    verdict = await SHIPPED.check("ባቡር")
    assert "ETHIOPIC" in verdict.findings[0].detail


async def test_a_policy_without_words_of_a_script_cannot_read_it() -> None:
    policy = parse_policy(
        "{version: 1, name: own, revision: a, lists: {young: [kite], rude: [storm]},"
        f" categories: {{{MINORS}: {{action: block, combinations: [[young, rude]]}}}}}}"
    )
    assert readable_scripts(policy) == {"LATIN"}
    assert (await PolicyFilter(policy).check("日本の城")).category == UNREADABLE


def test_the_shipped_policy_reads_the_scripts_of_the_most_used_languages() -> None:
    assert {"LATIN", "HAN", "HIRAGANA", "KATAKANA", "HANGUL", "ARABIC", "CYRILLIC", "GREEK"} <= SCRIPTS
    assert {"DEVANAGARI", "BENGALI", "TAMIL", "TELUGU", "GUJARATI", "GURMUKHI", "KANNADA"} <= SCRIPTS
    assert {"MALAYALAM", "THAI", "HEBREW"} <= SCRIPTS
