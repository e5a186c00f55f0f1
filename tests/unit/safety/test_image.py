"""Image rules, sampling of frames, and blurring."""

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.safety import Action, FilterInfo, Finding, Verdict
from diffuserve.safety.image import (
    ImageRule,
    ScoredImageFilter,
    blur,
    check_frames,
    merged,
    parse_rules,
)

LABELS = ("nsfw", "gore")
IMAGE = Image.new("RGB", (8, 8))


class _Scores:
    """Stands for a model."""

    name, version, labels = "scores", "1", LABELS

    def __init__(self, scores: Mapping[str, float]) -> None:
        self._scores = scores

    def scores(self, image: Image.Image) -> Mapping[str, float]:
        return self._scores


class _Seen:
    """Finds every image's width."""

    info = FilterInfo("seen", "1")

    def check(self, image: Image.Image) -> Verdict:
        return Verdict((Finding(str(image.width), Action.ALLOW, "seen"),))


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_rule_applies_from_its_threshold_on(score: float, threshold: float) -> None:
    rules = {"nsfw": ImageRule(threshold, Action.BLOCK)}
    verdict = ScoredImageFilter(_Scores({"nsfw": score, "gore": 1.0}), rules).check(IMAGE)
    assert verdict.action is (Action.BLOCK if score >= threshold else Action.ALLOW)


def test_the_strictest_rule_decides_and_all_are_recorded() -> None:
    rules = parse_rules(
        {"nsfw": {"threshold": 0.1, "action": "allow"}, "gore": {"threshold": 0.5, "action": "blur"}}, LABELS
    )
    verdict = ScoredImageFilter(_Scores({"nsfw": 0.12345, "gore": 0.75}), rules).check(IMAGE)
    assert (verdict.action, verdict.category) == (Action.BLUR, "gore")
    assert [(finding.category, finding.score) for finding in verdict.findings] == [
        ("nsfw", 0.1235),
        ("gore", 0.75),
    ]


def test_the_filter_has_the_scorers_name_version_and_thresholds() -> None:
    info = ScoredImageFilter(_Scores({}), {"nsfw": ImageRule(0.25, Action.BLUR)}).info
    assert info == FilterInfo("scores", "1", {"nsfw": 0.25})


def test_a_score_that_is_not_finite_raises_an_error() -> None:
    image_filter = ScoredImageFilter(_Scores({"nsfw": float("nan")}), {"nsfw": ImageRule(0.5, Action.BLOCK)})
    with pytest.raises(ValueError, match="not finite"):
        image_filter.check(IMAGE)


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"cats": {"threshold": 0.5, "action": "block"}}, "it has: gore, nsfw"),
        ({"nsfw": {"threshold": 0.5}}, "needs a threshold and an action"),
        ({"nsfw": {"threshold": 0.5, "action": "block", "colour": "red"}}, "needs a threshold and an action"),
        ({"nsfw": 0.5}, "needs a threshold and an action"),
        ({"nsfw": {"threshold": 1.5, "action": "block"}}, "must lie in 0…1"),
        ({"nsfw": {"threshold": True, "action": "block"}}, "must lie in 0…1"),
        ({"nsfw": {"threshold": float("nan"), "action": "block"}}, "must lie in 0…1"),
        ({"nsfw": {"threshold": "0.5", "action": "block"}}, "must lie in 0…1"),
        ({"nsfw": {"threshold": 0.5, "action": "flag"}}, "must be allow, blur or block"),
    ],
)
def test_an_invalid_rule_is_refused_with_the_remedy(rules: Mapping[str, object], said: str) -> None:
    with pytest.raises(InvalidParams, match="image_rules") as refused:
        parse_rules(rules, LABELS)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("num_frames", "every", "seen"),
    [
        (1, 1, [1]),
        (5, 1, [1, 2, 3, 4, 5]),
        (5, 2, [1, 3, 5]),
        (6, 2, [1, 3, 5, 6]),
        (17, 16, [1, 17]),
        (17, 7, [1, 8, 15, 17]),
        (2, 16, [1, 2]),
    ],
)
def test_the_first_frame_the_last_and_every_nth_between_are_checked(
    num_frames: int, every: int, seen: list[int]
) -> None:
    frames = [Image.new("RGB", (width, 1)) for width in range(1, num_frames + 1)]
    verdict = check_frames(_Seen(), frames, every)
    assert [int(finding.category) for finding in verdict.findings] == seen


def test_every_frame_is_checked_unless_told_otherwise() -> None:
    frames = [Image.new("RGB", (width, 1)) for width in range(1, 82)]
    assert len(check_frames(_Seen(), frames).findings) == 81


def test_the_verdict_on_a_clip_has_each_finding_once_with_its_highest_score() -> None:
    scores = [("nsfw", Action.BLUR, 0.6), ("gore", Action.ALLOW, 0.2), ("nsfw", Action.BLUR, 0.7)]
    verdicts = [Verdict((Finding(category, action, "s", score),)) for category, action, score in scores]
    assert merged([*verdicts, Verdict()]).findings == (
        Finding("nsfw", Action.BLUR, "s", 0.7),
        Finding("gore", Action.ALLOW, "s", 0.2),
    )


@pytest.mark.parametrize("size", [(64, 64), (1024, 768), (16, 2048), (16, 16), (1, 1)])
def test_a_blurred_image_keeps_its_size_and_no_detail(size: tuple[int, int]) -> None:
    noise = Image.effect_noise(size, 120).convert("RGB")
    found = blur(noise)
    assert found.size == size
    assert found.mode == "RGB"
    if min(size) >= 16 and max(size) < 2048:
        steps = np.abs(np.diff(np.asarray(found, dtype=float), axis=1)).mean()
        assert steps < 0.25 * np.abs(np.diff(np.asarray(noise, dtype=float), axis=1)).mean()


def test_images_that_differ_only_in_detail_blur_to_the_same_image() -> None:
    """The original cannot be reconstructed from the blurred image."""
    first = np.zeros((120, 120, 3), dtype=np.uint8)
    second = first.copy()
    first[::2, ::2] = second[1::2, 1::2] = 200
    assert blur(Image.fromarray(first)).tobytes() == blur(Image.fromarray(second)).tobytes()
