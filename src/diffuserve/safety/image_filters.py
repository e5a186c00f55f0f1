"""The image filter that a name stands for."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from diffuserve.domain.errors import InvalidParams
from diffuserve.safety.base import ImageFilter
from diffuserve.safety.image import ImageRule, ImageScorer, ScoredImageFilter, parse_rules

DEFAULT_IMAGE_FILTER = "opennsfw"
NO_IMAGE_FILTER = "none"
_FOLDER = "transformers:"


def check_image_filter_name(name: str) -> str:
    """Raises `InvalidParams` without loading anything."""
    if name not in _OPENERS and name != NO_IMAGE_FILTER and not name.startswith(_FOLDER):
        remedy = "must be opennsfw, nudenet, transformers:/folder, or none to let every image pass"
        raise InvalidParams("image_filter", name, remedy)
    return name


def open_image_filter(name: str, rules: Mapping[str, Any] | None = None) -> ImageFilter | None:
    """Loads it; `None` for `none`. Without `rules` those hold that the filter comes with.

    Raises `InvalidParams` that names `image_filter` or `image_rules` and says what would do.
    """
    if check_image_filter_name(name) == NO_IMAGE_FILTER:
        return None
    opener = _OPENERS.get(name)
    try:
        scorer, defaults = opener() if opener else _transformers(name.removeprefix(_FOLDER))
    except ImportError as error:
        extra = "nudenet" if name == "nudenet" else "engine"
        remedy = f"{error.name or error} is not installed; pip install 'diffuserve[{extra}]'"
        raise InvalidParams("image_filter", name, remedy) from error
    return ScoredImageFilter(scorer, parse_rules(rules, scorer.labels) if rules else _usual(scorer, defaults))


_Opened = tuple[ImageScorer, Mapping[str, ImageRule]]


def _usual(scorer: ImageScorer, defaults: Mapping[str, ImageRule]) -> Mapping[str, ImageRule]:
    if not defaults:
        known = ", ".join(sorted(scorer.labels))
        remedy = f"{scorer.name} comes without rules; say what follows from its labels: {known}"
        raise InvalidParams("image_rules", {}, remedy)
    return defaults


def _opennsfw() -> _Opened:
    from diffuserve.safety.opennsfw import DEFAULT_RULES, OpenNsfw

    return OpenNsfw(), DEFAULT_RULES


def _nudenet() -> _Opened:
    from diffuserve.safety.nudenet import DEFAULT_RULES, NudeNet

    return NudeNet(), DEFAULT_RULES


def _transformers(folder: str) -> _Opened:
    from diffuserve.safety.transformers_image import TransformersClassifier

    return TransformersClassifier(Path(folder).expanduser()), {}


_OPENERS: Mapping[str, Callable[[], _Opened]] = {"opennsfw": _opennsfw, "nudenet": _nudenet}
