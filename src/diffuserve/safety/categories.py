"""What others call the categories that a policy has."""

from collections.abc import Mapping

_OURS = {
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
    """Of OpenAI's name for it, in any case; a name that is not known is a category of its own."""
    plain = name.replace("/", "_").replace("-", "_")
    return _OURS.get(plain.lower(), plain)


def by_category(scores: Mapping[str, float]) -> dict[str, float]:
    """The largest score of each category."""
    found: dict[str, float] = {}
    for name, score in scores.items():
        category = category_of(name)
        found[category] = max(score, found.get(category, 0.0))
    return found
