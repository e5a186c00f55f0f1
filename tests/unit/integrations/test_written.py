"""What the commands write for other servers."""

import json
import zipfile
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from diffuserve.cli.main import app
from diffuserve.domain.errors import InvalidParams
from diffuserve.integrations.engine import settings_of
from diffuserve.integrations.triton.repository import INPUTS


def written(tmp_path: Path, *arguments: str) -> Path:
    done = CliRunner().invoke(app, ["integrations", *arguments[:1], str(tmp_path), *arguments[1:]])
    if done.exception is not None:
        raise done.exception
    return Path(done.stdout.strip())


def test_a_triton_model_takes_what_images_need_and_names_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIFFUSERVE_ADAPTER_FILES", '{"ink": "/ink.safetensors"}')
    model = written(tmp_path, "triton", "--device", "cuda:1", "--name", "flux")
    text = (model / "config.pbtxt").read_text()
    assert text.startswith('name: "flux"\nbackend: "python"\n')
    assert "max_batch_size: 0" in text
    assert "KIND_GPU gpus: [ 1 ]" in text
    assert {"prompt", "negative_prompt", "width", "height", "steps", "guidance", "seed", "num_images"} <= {
        *INPUTS
    }
    assert all(f'name: "{name}"' in text for name in INPUTS)
    assert r'string_value: "{\"ink\": \"/ink.safetensors\"}"' in text
    assert "device" not in text
    compile((model / "1" / "model.py").read_text(), "model.py", "exec")


def test_a_torchserve_archive_has_a_manifest_a_handler_and_settings(tmp_path: Path) -> None:
    archive = written(tmp_path, "torchserve", "--quantization", "int8")
    assert archive == tmp_path / "diffuserve.mar"
    with zipfile.ZipFile(archive) as zipped:
        model = json.loads(zipped.read("MAR-INF/MANIFEST.json"))["model"]
        config = yaml.safe_load(zipped.read(model["configFile"]))
        compile(zipped.read(model["handler"]), "handler.py", "exec")
    assert (config["batchSize"], config["asyncCommunication"]) == (1, True)
    assert config["handler"] == {"quantization": "int8"}


@pytest.mark.parametrize("command", ["triton", "torchserve"])
def test_nothing_that_is_there_is_overwritten_and_names_stay_in_the_folder(
    command: str, tmp_path: Path
) -> None:
    written(tmp_path, command)
    with pytest.raises(InvalidParams, match="is there already; remove it"):
        written(tmp_path, command)
    with pytest.raises(InvalidParams, match="must be of letters"):
        written(tmp_path, command, "--name", "../elsewhere")


def test_settings_are_read_as_written_and_bad_ones_named() -> None:
    texts = {"model": "flux-schnell", "adapter_files": '{"ink": "/ink.safetensors"}', "deterministic": "true"}
    config = settings_of(texts, device="cpu").engine_process
    assert (config.model, config.adapter_files, config.device) == (
        "flux-schnell",
        {"ink": "/ink.safetensors"},
        "cpu",
    )
    assert config.engine.deterministic
    with pytest.raises(InvalidParams, match="did you mean 'quantization'"):
        settings_of({"quantisation": "int8"})
    with pytest.raises(InvalidParams, match=r"quantization='int9': must be none, int8"):
        settings_of({"quantization": "int9"})
