"""The prompt filter: a policy's rules, and a classifier's scores by the policy's thresholds."""

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from diffuserve.domain.errors import ModerationUnavailable
from diffuserve.domain.safety import Action, FilterInfo, Finding, Verdict
from diffuserve.safety.base import TextClassifier
from diffuserve.safety.policies.policy import Category, Policy
from diffuserve.safety.policies.readability import readable_scripts, unreadable_part
from diffuserve.safety.policies.rules import Rules

UNJUDGED = "unjudged"
"""The category of a finding that the classifier was unavailable."""
UNREADABLE = "unreadable"
"""The category of a finding that the rules cannot read the text."""


@runtime_checkable
class ExplainingClassifier(Protocol):
    """A classifier that can name the words that decide its scores."""

    def explain(self, prompt: str, categories: Sequence[str]) -> Mapping[str, str]:
        """Return for each of the categories the words that contribute most to its score."""
        ...


class PolicyFilter:
    """Checks prompts by a policy's rules and, if there is one, by a classifier, which it owns.

    With `is_open_when_down` a prompt is checked by the rules alone, and flagged, while the classifier is
    unavailable; otherwise `check` raises an error.
    """

    def __init__(
        self, policy: Policy, classifier: TextClassifier | None = None, *, is_open_when_down: bool = False
    ) -> None:
        self._policy = policy
        self._rules = Rules(policy)
        self._readable = readable_scripts(policy)
        self._classifier = classifier
        self._is_open_when_down = is_open_when_down
        self.info = FilterInfo("policy", _version(policy, classifier), policy.thresholds)

    async def check(self, prompt: str, tenant_id: str = "") -> Verdict:
        """Return the findings of rules, that of a text they cannot read, then those of scores.

        Those of rules and scores are in the policy's order.
        Raise `ModerationUnavailable` if the classifier is unavailable and the rules do not block the prompt.
        """
        by_rules = (*self._check_rules(prompt, self._categories(tenant_id)), *self._check_readability(prompt))
        return await self.add_scores(prompt, tenant_id, Verdict(by_rules))

    async def check_all(self, prompts: Sequence[str], tenant_id: str = "") -> list[Verdict]:
        """Return the verdict on each prompt. Raise `ModerationUnavailable` as `check` does."""
        return await in_parallel(self.check(prompt, tenant_id) for prompt in prompts)

    async def add_scores(self, prompt: str, tenant_id: str, by_rules: Verdict) -> Verdict:
        """Return the verdict by rules with the findings of scores. Raise `ModerationUnavailable`."""
        categories = self._categories(tenant_id)
        return Verdict(by_rules.findings + await self._check_scores(prompt, categories, by_rules))

    async def close(self) -> None:
        """Close the classifier."""
        if self._classifier:
            await self._classifier.close()

    def _categories(self, tenant_id: str) -> Sequence[Category]:
        return [
            category
            for category in self._policy.categories_for(tenant_id)
            if category.action is not Action.ALLOW
        ]

    def _check_rules(self, prompt: str, categories: Sequence[Category]) -> Iterator[Finding]:
        text = self._rules.prepare(prompt)
        for category in categories:
            if match := self._rules.match(text, category.name):
                yield Finding(category.name, category.action, match.kind, detail=match.detail)

    def _check_readability(self, prompt: str) -> Iterator[Finding]:
        if self._policy.unreadable is Action.ALLOW:
            return
        if part := unreadable_part(prompt, self._readable):
            yield Finding(UNREADABLE, self._policy.unreadable, "rules", detail=part)

    async def _check_scores(
        self, prompt: str, categories: Sequence[Category], by_rules: Verdict
    ) -> tuple[Finding, ...]:
        if self._classifier is None:
            return ()
        try:
            scores = await self._classifier.scores(prompt)
        except ModerationUnavailable as error:
            if by_rules.action is Action.BLOCK:
                return ()  # no score could change the verdict
            if not self._is_open_when_down:
                raise
            detail = f"checked by the rules alone: {error}"
            return (Finding(UNJUDGED, Action.FLAG, self._classifier.info.name, 0.0, detail),)
        exceeded = [category for category in categories if _is_exceeded(category, scores)]
        return self._findings(prompt, exceeded, scores) if exceeded else ()

    def _findings(
        self, prompt: str, exceeded: Sequence[Category], scores: Mapping[str, float]
    ) -> tuple[Finding, ...]:
        classifier = self._classifier
        assert classifier is not None
        names = [category.name for category in exceeded]
        words = classifier.explain(prompt, names) if isinstance(classifier, ExplainingClassifier) else {}
        return tuple(
            Finding(
                category.name,
                category.action,
                classifier.info.name,
                scores[category.name],
                _detail(category, scores, words),
            )
            for category in exceeded
        )


async def in_parallel(checks: Iterable[Coroutine[Any, Any, Verdict]]) -> list[Verdict]:
    """Await all checks at once; cancel the others when one fails, and raise its error."""
    tasks = [asyncio.ensure_future(check) for check in checks]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _is_exceeded(category: Category, scores: Mapping[str, float]) -> bool:
    return category.threshold is not None and scores.get(category.name, 0.0) >= category.threshold


def _detail(category: Category, scores: Mapping[str, float], words: Mapping[str, str]) -> str:
    detail = f"score {scores[category.name]:.2f}, threshold {category.threshold:.2f}"
    top_words = words.get(category.name)
    return f"{detail}; strongest words: {top_words}" if top_words else detail


def _version(policy: Policy, classifier: TextClassifier | None) -> str:
    version = f"{policy.name} {policy.revision}"
    return f"{version} + {classifier.info}" if classifier else version
