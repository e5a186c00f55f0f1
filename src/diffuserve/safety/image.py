"""Image filters: a model's scores, and rules with thresholds and actions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from PIL import Image

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.safety import Action, FilterInfo, Finding, Verdict
from diffuserve.media.transparency import flattened
from diffuserve.safety.base import ImageFilter

ACTIONS = (Action.ALLOW, Action.BLUR, Action.BLOCK)
_MAX_CELLS, _MIN_CELL_PIXELS = 12, 8  # of the grid that replaces a blurred image
_EXAMPLE = '{"nsfw": {"threshold": 0.8, "action": "block"}}'


class ImageScorer(Protocol):
    """A model that scores images. `labels` are those that it has scores for."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def labels(self) -> Sequence[str]: ...

    def scores(self, image: Image.Image) -> Mapping[str, float]:
        """Return a score in 0…1 for each label. Several threads may call this at once."""
        ...


@dataclass(frozen=True)
class ImageRule:
    """A score of at least `threshold`, in 0…1, leads to the action. `ALLOW` only records the finding."""

    threshold: float
    action: Action


class ScoredImageFilter:
    """An `ImageFilter` made of a model and rules by label."""

    def __init__(self, scorer: ImageScorer, rules: Mapping[str, ImageRule]) -> None:
        self._scorer = scorer
        self._rules = dict(rules)
        thresholds = {label: rule.threshold for label, rule in self._rules.items()}
        self.info = FilterInfo(scorer.name, scorer.version, thresholds)

    def check(self, image: Image.Image) -> Verdict:
        """Return a finding for each rule that applies. Raise `ValueError` if a score is not finite."""
        scores = self._scorer.scores(image)
        if not all(math.isfinite(scores[label]) for label in self._rules):
            raise ValueError(f"{self.info.name} gave scores that are not finite")
        return Verdict(
            tuple(
                Finding(label, rule.action, self.info.name, round(scores[label], 4))
                for label, rule in self._rules.items()
                if scores[label] >= rule.threshold
            )
        )


def parse_rules(rules: Mapping[str, Any], labels: Sequence[str]) -> dict[str, ImageRule]:
    """Return the rules by label. Raise `InvalidParams` for an unknown label or an invalid rule."""
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


def check_frames(image_filter: ImageFilter, frames: Sequence[Image.Image], every: int = 1) -> Verdict:
    """Return the verdict on an image, or on those frames of a clip that `is_judged` chooses."""
    judged = [frame for index, frame in enumerate(frames) if is_judged(index, len(frames), every)]
    return merged([image_filter.check(frame) for frame in judged])


def is_judged(index: int, num_frames: int, every: int) -> bool:
    """Return whether a frame of a clip is judged: the first, the last, and every n-th between are."""
    return index % every == 0 or index == num_frames - 1


def merged(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict on all frames of a clip: each finding once, with its highest score."""
    highest: dict[tuple[str, Action, str], Finding] = {}
    for finding in (finding for verdict in verdicts for finding in verdict.findings):
        key = (finding.category, finding.action, finding.source)
        known = highest.get(key, finding)
        highest[key] = max(known, finding, key=lambda found: found.score)
    return Verdict(tuple(highest.values()))


def blur(image: Image.Image) -> Image.Image:
    """Return an image of the same size that keeps only the mean colors of at most 12 × 12 cells.

    A blur by a kernel could be undone in part by deconvolution; this cannot.
    """
    return from_cells(cells_of(image), image.size)


def cells_of(image: Image.Image) -> Image.Image:
    """Return what a blurred image keeps of it: a small image of mean colors."""
    longer = max(image.size)
    num_cells = min(_MAX_CELLS, longer // _MIN_CELL_PIXELS)
    width, height = (max(round(side * num_cells / longer), 1) for side in image.size)
    return flattened(image).convert("RGB").resize((width, height), Image.Resampling.BOX)


def from_cells(cells: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Return the blurred image of this size of which `cells` were kept."""
    return cells.resize(size, Image.Resampling.BICUBIC)
