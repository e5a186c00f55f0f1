"""What a policy says: which words, which combinations, which scores, and what follows."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from diffuserve.domain.safety import Action

MINORS = "sexual_minors"
"""The category that every policy has, that always blocks, and that no tenant can loosen."""


@dataclass(frozen=True)
class WordList:
    """`terms` are words or phrases, in any number; `patterns` are regular expressions for folded text."""

    terms: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Category:
    """What belongs to it, and what follows.

    A match within one of the `exceptions` is taken back. Each of the `combinations` names word lists, or
    categories for their words, and holds where one prompt has a word of each. A classifier's score from
    `threshold` on (0…1) is a finding as well; without one the category has rules alone.
    """

    name: str
    action: Action
    words: WordList = WordList()
    combinations: tuple[tuple[str, ...], ...] = ()
    exceptions: WordList = WordList()
    threshold: float | None = None


@dataclass(frozen=True)
class Override:
    """What one tenant has otherwise; None is as for all."""

    action: Action | None = None
    threshold: float | None = None

    def apply(self, category: Category) -> Category:
        threshold = category.threshold if self.threshold is None else self.threshold
        return replace(category, action=self.action or category.action, threshold=threshold)


@dataclass(frozen=True)
class Policy:
    """`name` and `revision` say which policy it is; they stand in every verdict's record."""

    name: str
    revision: str
    categories: Mapping[str, Category]
    lists: Mapping[str, WordList] = field(default_factory=dict)
    tenants: Mapping[str, Mapping[str, Override]] = field(default_factory=dict)

    def categories_for(self, tenant_id: str) -> tuple[Category, ...]:
        """In the order of the policy, with what this tenant has otherwise."""
        overrides = self.tenants.get(tenant_id, {})
        return tuple(
            overrides[category.name].apply(category) if category.name in overrides else category
            for category in self.categories.values()
        )

    @property
    def thresholds(self) -> dict[str, float]:
        return {name: one.threshold for name, one in self.categories.items() if one.threshold is not None}
