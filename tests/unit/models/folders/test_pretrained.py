"""Loading a model folder runs no code of it, asks no hub, and builds no more than the files hold."""

import ast
import builtins
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoImageProcessor, AutoModelForSequenceClassification, AutoTokenizer, CLIPTextModel

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.bundled import bundled_models
from diffuserve.models.folders.pretrained import load_module, load_processor
from diffuserve.models.registry import load_pipeline
from diffuserve.models.weights.load_plan import LoadPlan

ROOT = Path(__file__).parents[4]
LOADER = ROOT / "src/diffuserve/models/folders/pretrained.py"
SAFE = {"local_files_only": True, "trust_remote_code": False}
CODE = """
import pathlib
pathlib.Path({marker!r}).touch()
from transformers import PreTrainedTokenizerFast

class Own(PreTrainedTokenizerFast):  # transformers marks the class that it loads
    pass
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundled_models()["tiny-flux"], tmp_path / "model"))


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file that exists once a folder's code has run; whoever is asked about code says yes."""
    monkeypatch.setattr(builtins, "input", lambda _prompt="": "y")
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    return tmp_path / "the code has run"


def add_code(config: Path, marker: Path, kinds: dict[str, Any], **values: Any) -> None:
    """Have a config name classes of a Python file beside it, which leaves `marker` when it is imported."""
    config.with_name("own.py").write_text(CODE.format(marker=str(marker)))
    config.write_text(json.dumps(json.loads(config.read_text("utf-8")) | {"auto_map": kinds} | values))


@pytest.mark.parametrize("component", ["tokenizer", "tokenizer_2"])
def test_a_tokenizers_code_is_not_run(model: Path, marker: Path, component: str) -> None:
    kinds = {"AutoTokenizer": ["own.Own", "own.Own"]}
    add_code(model / component / "tokenizer_config.json", marker, kinds, tokenizer_class="Own")
    load_pipeline(str(model), LoadPlan(torch.device("cpu")))
    with pytest.raises(InvalidModel, match=f"{component}: AutoTokenizer cannot load it"):
        load_processor(AutoTokenizer, model / component)
    assert not marker.exists()


@pytest.mark.parametrize("component", ["text_encoder", "text_encoder_2", "vae", "transformer"])
def test_a_components_code_is_not_run(model: Path, marker: Path, component: str) -> None:
    kinds = {"AutoConfig": "own.Own", "AutoModel": "own.Own"}
    add_code(model / component / "config.json", marker, kinds)
    load_pipeline(str(model), LoadPlan(torch.device("cpu")))
    assert not marker.exists()


def test_a_classifiers_code_is_not_run(model: Path, marker: Path) -> None:
    folder = model / "text_encoder"
    kinds = {"AutoConfig": "own.Own", "AutoModelForSequenceClassification": "own.Own"}
    add_code(folder / "config.json", marker, kinds, model_type="own")
    with pytest.raises(InvalidModel):
        load_module(AutoModelForSequenceClassification, folder)
    assert not marker.exists()


def test_an_image_processors_code_is_not_run(tmp_path: Path, marker: Path) -> None:
    config = tmp_path / "classifier" / "preprocessor_config.json"
    config.parent.mkdir()
    config.write_text("{}")
    add_code(config, marker, {"AutoImageProcessor": "own.Own"}, image_processor_type="Own")
    with pytest.raises(InvalidModel):
        load_processor(AutoImageProcessor, config.parent)
    assert not marker.exists()


def test_the_fixture_would_see_code_that_runs(model: Path, marker: Path) -> None:
    kinds = {"AutoTokenizer": ["own.Own", "own.Own"]}
    add_code(model / "tokenizer" / "tokenizer_config.json", marker, kinds, tokenizer_class="Own")
    AutoTokenizer.from_pretrained(
        str(model / "tokenizer"), local_files_only=True, trust_remote_code=bool(marker)
    )
    assert marker.exists()


def test_no_hub_is_asked_for_what_a_folder_lacks(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the hub was asked")

    for name in ("hf_hub_download", "snapshot_download"):
        monkeypatch.setattr(huggingface_hub, name, refuse)
    for file in (model / "tokenizer").iterdir():
        file.unlink()
    with pytest.raises(InvalidModel) as refusal:
        load_processor(AutoTokenizer, model / "tokenizer")
    assert "hub was asked" not in str(refusal.value)


def test_missing_weights_are_not_drawn_at_random(model: Path) -> None:
    file = next((model / "text_encoder").glob("*.safetensors"))
    tensors = load_file(file)
    lost = next(name for name in tensors if name.endswith("final_layer_norm.weight"))
    del tensors[lost]
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(InvalidModel, match="the weights lack"):
        load_module(CLIPTextModel, model / "text_encoder")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"hidden_size": 3 * 2**20}, "parameters, and the files hold"),
        ({"vocab_size": 10**7}, "parameters, and the files hold"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers=1000000000 is out of bounds"),
        ({"nested": [{"num_layers": 513}]}, "num_layers=513 is out of bounds"),
        ({"num_attention_heads": 0}, "cannot load it"),
        ({"hidden_size": "wide"}, "cannot load it"),
    ],
)
def test_a_config_that_describes_more_than_the_files_hold_is_refused(
    model: Path, changes: dict[str, object], complaint: str
) -> None:
    config = model / "text_encoder" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text("utf-8")) | changes))
    with pytest.raises(InvalidModel, match=complaint):
        load_module(CLIPTextModel, model / "text_encoder")


def calls_of_from_pretrained(module: Path) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield the line of each call, and the keywords that it passes as plain values."""
    text = module.read_text("utf-8")
    if "from_pretrained" not in text:  # to parse all files takes seconds
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and node.attr == "from_pretrained":
            yield node.lineno, {}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            keywords = {
                word.arg: word.value.value for word in node.keywords if isinstance(word.value, ast.Constant)
            }
            if node.func.attr == "from_pretrained":
                yield node.lineno, {str(name): value for name, value in keywords.items()}


def test_only_the_loader_calls_from_pretrained() -> None:
    modules = set((ROOT / "src").rglob("*.py")) - {LOADER}
    assert len(modules) > 200
    assert [(module, line) for module in modules for line, _ in calls_of_from_pretrained(module)] == []


@pytest.mark.parametrize("folder", ["tests", "benchmarks", "training", "scripts"])
def test_no_other_call_of_from_pretrained_trusts_what_it_loads(folder: str) -> None:
    own = Path(__file__)
    for module in set((ROOT / folder).rglob("*.py")) - {own}:
        calls: dict[int, dict[str, object]] = {}
        for line, keywords in calls_of_from_pretrained(module):
            calls[line] = calls.get(line, {}) | keywords
        for line, keywords in calls.items():
            assert SAFE.items() <= keywords.items(), f"{module}:{line} must pass {SAFE}"
