"""A text classifier in ONNX gives what its model computes."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diffuserve.domain.errors import InvalidModel, InvalidParams, ModerationUnavailable
from diffuserve.safety.classifiers.onnx_text import OnnxTextClassifier
from support.text_classifiers import WORDS, BagOfWords, write_onnx_classifier

LABELS = ("sexual", "sexual/minors", "violence", "violence/graphic", "own-label")
NAMES = ("sexual", "sexual_minors", "violence", "own_label")
BEGIN, END = WORDS.index("[CLS]"), WORDS.index("[SEP]")
PROMPTS = st.lists(st.sampled_from(WORDS[4:]), min_size=1, max_size=60)


def tokens(words: list[str]) -> list[int]:
    return [BEGIN, *map(WORDS.index, words), END]


def sigmoid(logits: Any) -> Any:
    return 1 / (1 + np.exp(-logits.astype(np.float64)))


def scores(classifier: OnnxTextClassifier, prompt: str) -> dict[str, float]:
    return dict(asyncio.run(classifier.scores(prompt)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("classifier")


@pytest.fixture(scope="module")
def model(folder: Path) -> BagOfWords:
    return write_onnx_classifier(folder, LABELS)


@pytest.fixture(scope="module")
def classifier(folder: Path, model: BagOfWords) -> OnnxTextClassifier:
    return OnnxTextClassifier(folder)


@given(words=PROMPTS)
def test_scores_are_those_of_the_model_computed_in_numpy(
    words: list[str], model: BagOfWords, classifier: OnnxTextClassifier
) -> None:
    found = scores(classifier, " ".join(words))
    expected = dict(zip(LABELS, sigmoid(model.logits(tokens(words))), strict=True))
    assert set(found) == set(NAMES)
    assert found["sexual"] == pytest.approx(expected["sexual"], abs=1e-6)
    assert found["sexual_minors"] == pytest.approx(expected["sexual/minors"], abs=1e-6)
    assert found["violence"] == pytest.approx(
        max(expected["violence"], expected["violence/graphic"]), abs=1e-6
    )


def test_scores_of_a_single_label_model_are_a_softmax(tmp_path: Path) -> None:
    model = write_onnx_classifier(tmp_path, ["OK", "S", "H"], problem="single_label_classification")
    powers = np.exp(model.logits(tokens(["a", "gun"])).astype(np.float64))
    found = scores(OnnxTextClassifier(tmp_path), "a gun")
    assert list(found.values()) == pytest.approx(powers / powers.sum(), abs=1e-6)
    assert sum(found.values()) == pytest.approx(1)


def test_labels_can_be_given_other_categories(tmp_path: Path) -> None:
    write_onnx_classifier(tmp_path, ["OK", "S", "V", "V2"])
    labels = {"S": "sexual", "V": "violence", "V2": "violence"}
    plain, named = OnnxTextClassifier(tmp_path), OnnxTextClassifier(tmp_path, labels)
    own, found = scores(plain, "a cat"), scores(named, "a cat")
    largest = max(own["V"], own["V2"])
    assert found == {"OK": own["OK"], "sexual": own["S"], "violence": largest}
    assert named.categories == found.keys()
    with pytest.raises(InvalidModel, match="OK, S, V, V2"):
        OnnxTextClassifier(tmp_path, {"H": "hate"})


def test_the_folder_can_map_labels_to_categories(tmp_path: Path) -> None:
    write_onnx_classifier(tmp_path, ["OK", "S"])
    (tmp_path / "diffuserve.json").write_text('{"labels": {"S": "sexual"}}')
    assert OnnxTextClassifier(tmp_path).categories == {"OK", "sexual"}
    for wrong in (["S"], {"S": 1}, {"S": ""}, {"H": "hate"}):
        (tmp_path / "diffuserve.json").write_text(json.dumps({"labels": wrong}))
        with pytest.raises(InvalidModel, match="label"):
            OnnxTextClassifier(tmp_path)


@settings(max_examples=30)
@given(words=PROMPTS)
def test_every_part_of_a_long_prompt_is_scored(
    words: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("short")
    model = write_onnx_classifier(folder, ["hate"], max_tokens=10)
    length, stride = 8, 2
    starts = range(0, max(1, len(words) - stride), length - stride)
    windows = [words[start : start + length] for start in starts]
    largest = max(sigmoid(model.logits(tokens(window)))[0] for window in windows)
    found = scores(OnnxTextClassifier(folder), " ".join(words))
    assert found["hate"] == pytest.approx(largest, abs=1e-6)


def test_a_model_may_have_token_types_and_no_mask_as_inputs(tmp_path: Path) -> None:
    inputs = ("input_ids", "attention_mask", "token_type_ids")
    write_onnx_classifier(tmp_path, ["hate"], inputs=inputs)
    assert scores(OnnxTextClassifier(tmp_path), "a cat")["hate"] > 0


async def test_prompts_may_be_scored_at_the_same_time(classifier: OnnxTextClassifier) -> None:
    prompts = [f"a {colour} {thing}" for colour in WORDS[5:7] for thing in WORDS[7:]] * 8
    together = await asyncio.gather(*map(classifier.scores, prompts))
    assert together == [await classifier.scores(prompt) for prompt in prompts]


async def test_a_nan_score_raises_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_onnx_classifier(tmp_path, ["hate"])
    classifier = OnnxTextClassifier(tmp_path)
    monkeypatch.setattr(classifier, "_run", lambda _window: np.array([np.nan]))
    with pytest.raises(ModerationUnavailable):
        await classifier.scores("a cat")


def test_the_version_differs_between_models(folder: Path, model: BagOfWords, tmp_path: Path) -> None:
    same, other = tmp_path / folder.name, tmp_path / "other" / folder.name
    write_onnx_classifier(same, LABELS)
    write_onnx_classifier(other, LABELS, seed=1)
    first, second, third = (OnnxTextClassifier(path).info for path in (folder, same, other))
    assert first == second
    assert first.version != third.version
    assert first.version.startswith(f"{folder.name}+")


@pytest.mark.parametrize("name", ["config.json", "model.onnx", "tokenizer.json"])
@pytest.mark.parametrize("content", [None, b"", b"\x80\x04K\x01."])
def test_an_invalid_folder_is_refused(name: str, content: bytes | None, tmp_path: Path) -> None:
    write_onnx_classifier(tmp_path, ["hate"])
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidModel, match=name):
        OnnxTextClassifier(tmp_path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"problem_type": "regression"}, "regression"),
        ({"id2label": {}}, "labels"),
        ({"id2label": {"1": "hate"}}, "id2label"),
        ({"id2label": ["hate"]}, "id2label"),
        ({"id2label": {"0": "hate", "1": "hate"}}, "different"),
    ],
)
def test_a_config_without_scores_in_0_to_1_is_refused(
    changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_onnx_classifier(tmp_path, ["hate"])
    config = json.loads((tmp_path / "config.json").read_text()) | changed
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidModel, match=message):
        OnnxTextClassifier(tmp_path)


async def test_a_model_with_another_number_of_logits_raises_an_error(tmp_path: Path) -> None:
    write_onnx_classifier(tmp_path, ["hate"])
    config = json.loads((tmp_path / "config.json").read_text())
    config["id2label"] = {"0": "hate", "1": "violence"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModerationUnavailable):
        await OnnxTextClassifier(tmp_path).scores("a cat")


def test_unknown_inputs_are_refused(tmp_path: Path) -> None:
    write_onnx_classifier(tmp_path, ["hate"], inputs=["input_ids", "attention_mask", "pixel_values"])
    with pytest.raises(InvalidModel, match="pixel_values"):
        OnnxTextClassifier(tmp_path)


def test_without_the_extra_the_error_names_what_to_install(
    folder: Path, model: BagOfWords, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(InvalidParams, match=r"pip install 'diffuserve\[moderation\]'"):
        OnnxTextClassifier(folder)


def test_the_classifier_does_not_import_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import diffuserve.safety.classifiers.onnx_text"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
