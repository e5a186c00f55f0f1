"""The policy's categories by the names that OpenAI's moderation API has for them."""

from collections.abc import Mapping

_CATEGORIES = {
    "sexual": "sexual",
    "sexual_minors": "sexual_minors",
    "hate": "hate",
    "hate_threatening": "hate",
    "harassment": "harassment",
    "harassment_threatening": "harassment",
    "self_harm": "self_harm",
    "self_harm_intent": "self_harm",
    "self_harm_instructions": "self_harm",
    "violence": "violence",
    "violence_graphic": "violence",
}


def category_of(name: str) -> str:
    """Return the category for OpenAI's name, in any case; an unknown name becomes a category."""
    normalized = name.replace("/", "_").replace("-", "_")
    return _CATEGORIES.get(normalized.lower(), normalized)


def by_category(scores: Mapping[str, float]) -> dict[str, float]:
    """Return the largest score of each category. `scores` are by OpenAI's names."""
    largest: dict[str, float] = {}
    for name, score in scores.items():
        category = category_of(name)
        largest[category] = max(score, largest.get(category, 0.0))
    return largest
