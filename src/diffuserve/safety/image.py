"""What follows from an image: a model's scores, and rules that say which score means what."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from PIL import Image

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.safety import Action, FilterInfo, Finding, Verdict
from diffuserve.safety.base import ImageFilter

ACTIONS = (Action.ALLOW, Action.BLUR, Action.BLOCK)
MAX_FRAMES = 8
_MAX_FIELDS, _MIN_FIELD_PIXELS = 12, 8
_EXAMPLE = '{"nsfw": {"threshold": 0.8, "action": "block"}}'


class ImageScorer(Protocol):
    """A model that looks at images; `labels` are all that it has scores for."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def labels(self) -> Sequence[str]: ...

    def scores(self, image: Image.Image) -> Mapping[str, float]:
        """By label, in 0…1. Called from several threads at once."""
        ...


@dataclass(frozen=True)
class ImageRule:
    """From `threshold` on, a score in 0…1, the action follows. `allow` only puts it on record."""

    threshold: float
    action: Action


class ScoredImageFilter:
    """An `ImageFilter` of a model and rules."""

    def __init__(self, scorer: ImageScorer, rules: Mapping[str, ImageRule]) -> None:
        self._scorer = scorer
        self._rules = dict(rules)
        thresholds = {label: rule.threshold for label, rule in self._rules.items()}
        self.info = FilterInfo(scorer.name, scorer.version, thresholds)

    def check(self, image: Image.Image) -> Verdict:
        """Raises `ValueError` where the model gives no number: nothing passes on that."""
        scores = self._scorer.scores(image)
        if not all(math.isfinite(scores[label]) for label in self._rules):
            raise ValueError(f"{self.info.name} gives scores that are not finite")
        return Verdict(
            tuple(
                Finding(label, rule.action, self.info.name, round(scores[label], 4))
                for label, rule in self._rules.items()
                if scores[label] >= rule.threshold
            )
        )


def parse_rules(rules: Mapping[str, Any], labels: Sequence[str]) -> dict[str, ImageRule]:
    """Raises `InvalidParams` for a rule that nothing could follow from, or not as it was meant."""
    return {label: _parse_rule(label, rule, labels) for label, rule in rules.items()}


def _parse_rule(label: str, rule: object, labels: Sequence[str]) -> ImageRule:
    if label not in labels:
        known = ", ".join(sorted(labels))
        raise InvalidParams("image_rules", label, f"the filter has no such label; it has: {known}")
    if not isinstance(rule, Mapping) or set(rule) != {"threshold", "action"}:
        raise InvalidParams("image_rules", rule, f"needs a threshold and an action, as in {_EXAMPLE}")
    threshold, action = rule["threshold"], rule["action"]
    is_number = isinstance(threshold, int | float) and not isinstance(threshold, bool)
    if not is_number or not 0 <= threshold <= 1:
        raise InvalidParams("image_rules", threshold, f"the threshold of {label!r} must lie in 0…1")
    if action not in ACTIONS:
        raise InvalidParams("image_rules", action, f"the action of {label!r} must be allow, blur or block")
    return ImageRule(float(threshold), Action(action))


def check_frames(image_filter: ImageFilter, frames: Sequence[Image.Image]) -> Verdict:
    """On an image, or on a video by at most `MAX_FRAMES` frames, the first and the last among them."""
    seen = [image_filter.check(frame) for frame in _spread(frames)]
    return Verdict(tuple(finding for verdict in seen for finding in verdict.findings))


def _spread(frames: Sequence[Image.Image]) -> list[Image.Image]:
    if len(frames) <= MAX_FRAMES:
        return list(frames)
    return [frames[i * (len(frames) - 1) // (MAX_FRAMES - 1)] for i in range(MAX_FRAMES)]


def blurred(image: Image.Image) -> Image.Image:
    """Beyond recognition, and for good: nothing is kept but the means of fields, at most 12 × 12 of them.

    A blur by a kernel could be undone in part; what is not there cannot come back.
    """
    longer = max(image.size)
    num_fields = min(_MAX_FIELDS, longer // _MIN_FIELD_PIXELS)
    width, height = (max(round(side * num_fields / longer), 1) for side in image.size)
    fields = image.convert("RGB").resize((width, height), Image.Resampling.BOX)
    return fields.resize(image.size, Image.Resampling.BICUBIC)
