"""Safety policies: categories with their words, combinations, thresholds and actions."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from diffuserve.domain.safety import Action

MINORS = "sexual_minors"
"""A category that every policy has, that always blocks, and that no tenant can loosen."""


@dataclass(frozen=True)
class WordList:
    """Words that a rule looks for.

    `terms` are words or phrases, `stems` the beginnings of words, `fragments` letters anywhere, for scripts
    without spaces, and `patterns` regular expressions for folded text.
    """

    terms: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    stems: tuple[str, ...] = ()
    fragments: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Return whether there is any word."""
        return bool(self.terms or self.patterns or self.stems or self.fragments)


@dataclass(frozen=True)
class Category:
    """A kind of content, the rules that recognize it, and the action that follows.

    A match within a match of `exceptions` does not count. Each of the `combinations` names word lists, or
    categories for their words, and matches a prompt with a word of each. A name that ends with a star
    stands for all lists that begin so; where two names of a combination do, the rest must agree. A
    classifier's score of at least `threshold` (0…1) is a finding as well; without a threshold only rules
    apply.
    """

    name: str
    action: Action
    words: WordList = WordList()
    combinations: tuple[tuple[str, ...], ...] = ()
    exceptions: WordList = WordList()
    threshold: float | None = None


@dataclass(frozen=True)
class Override:
    """A tenant's own values for a category; `None` keeps the policy's."""

    action: Action | None = None
    threshold: float | None = None

    def apply(self, category: Category) -> Category:
        """Return the category with these values."""
        threshold = category.threshold if self.threshold is None else self.threshold
        return replace(category, action=self.action or category.action, threshold=threshold)


@dataclass(frozen=True)
class Policy:
    """Categories, word lists and tenants' overrides. The record of each verdict has `name` and `revision`.

    `unreadable` is the action for a text that the rules cannot read.
    """

    name: str
    revision: str
    categories: Mapping[str, Category]
    lists: Mapping[str, WordList] = field(default_factory=dict)
    tenants: Mapping[str, Mapping[str, Override]] = field(default_factory=dict)
    unreadable: Action = Action.FLAG

    def categories_for(self, tenant_id: str) -> tuple[Category, ...]:
        """Return the categories in the policy's order, with this tenant's overrides."""
        overrides = self.tenants.get(tenant_id, {})
        return tuple(
            overrides[category.name].apply(category) if category.name in overrides else category
            for category in self.categories.values()
        )

    @property
    def thresholds(self) -> dict[str, float]:
        """Thresholds by category, of those that have any."""
        return {
            name: category.threshold
            for name, category in self.categories.items()
            if category.threshold is not None
        }
