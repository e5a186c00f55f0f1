"""The first stage: a policy's rules, and a classifier's scores by the policy's thresholds."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

from diffuserve.domain.errors import ModerationUnavailable
from diffuserve.domain.safety import Action, FilterInfo, Finding, Verdict
from diffuserve.safety.base import TextClassifier
from diffuserve.safety.folding import fold
from diffuserve.safety.policy import Category, Policy
from diffuserve.safety.rules import ReadyText, Rules

UNJUDGED = "unjudged"
"""The category of the finding that says that no classifier saw a prompt."""


@runtime_checkable
class Explains(Protocol):
    """A classifier that can say what in a prompt speaks for each of these categories."""

    def explain(self, prompt: str, categories: Sequence[str]) -> Mapping[str, str]: ...


class PolicyFilter:
    """Judges by a policy, and by a classifier if it is given one, which it owns.

    With `is_open_when_down` a prompt that the classifier cannot judge is judged by the rules alone, and
    flagged.
    """

    def __init__(
        self, policy: Policy, classifier: TextClassifier | None = None, *, is_open_when_down: bool = False
    ) -> None:
        self._policy = policy
        self._rules = Rules(policy)
        self._classifier = classifier
        self._is_open_when_down = is_open_when_down
        self.info = FilterInfo("policy", _version(policy, classifier), policy.thresholds)

    async def check(self, prompt: str, tenant_id: str = "") -> Verdict:
        """Findings of rules first, one a category, in the policy's order. Raises `ModerationUnavailable`."""
        categories = [one for one in self._policy.categories_for(tenant_id) if one.action is not Action.ALLOW]
        ruled = tuple(self._by_rules(prompt, categories))
        return Verdict(ruled + await self._by_classifier(prompt, categories, Verdict(ruled)))

    async def close(self) -> None:
        if self._classifier:
            await self._classifier.close()

    def _by_rules(self, prompt: str, categories: Sequence[Category]) -> Iterator[Finding]:
        text = ReadyText(fold(prompt))
        for category in categories:
            if match := self._rules.match(text, category.name):
                yield Finding(category.name, category.action, match.kind, detail=match.detail)

    async def _by_classifier(
        self, prompt: str, categories: Sequence[Category], ruled: Verdict
    ) -> tuple[Finding, ...]:
        if self._classifier is None:
            return ()
        try:
            scores = await self._classifier.scores(prompt)
        except ModerationUnavailable as error:
            if ruled.action is Action.BLOCK:
                return ()  # no score could change this
            if not self._is_open_when_down:
                raise
            detail = f"judged by the rules alone: {error}"
            return (Finding(UNJUDGED, Action.FLAG, self._classifier.info.name, 0.0, detail),)
        over = [one for one in categories if _is_over(one, scores)]
        return self._by_scores(prompt, over, scores) if over else ()

    def _by_scores(
        self, prompt: str, over: Sequence[Category], scores: Mapping[str, float]
    ) -> tuple[Finding, ...]:
        classifier = self._classifier
        assert classifier is not None
        named = [one.name for one in over]
        words = classifier.explain(prompt, named) if isinstance(classifier, Explains) else {}
        return tuple(
            Finding(one.name, one.action, classifier.info.name, scores[one.name], _detail(one, scores, words))
            for one in over
        )


def _is_over(category: Category, scores: Mapping[str, float]) -> bool:
    return category.threshold is not None and scores.get(category.name, 0.0) >= category.threshold


def _detail(category: Category, scores: Mapping[str, float], words: Mapping[str, str]) -> str:
    said = f"score {scores[category.name]:.2f}, threshold {category.threshold:.2f}"
    return f"{said}; most telling: {words[category.name]}" if words.get(category.name) else said


def _version(policy: Policy, classifier: TextClassifier | None) -> str:
    own = f"{policy.name} {policy.revision}"
    return f"{own} + {classifier.info.name} {classifier.info.version}" if classifier else own
