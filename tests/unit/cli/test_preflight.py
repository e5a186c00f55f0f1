"""Refusals that come before torch is imported, a port is opened or a folder is made."""

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from diffuserve.cli.preflight import check_requests, check_worker
from diffuserve.domain import extras
from diffuserve.domain.errors import InvalidModel, InvalidParams, ModelNotFound
from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.quantization import Quantization
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.models.bundled import bundled_models
from diffuserve.protocol.config import EngineProcessConfig
from support.command import Invoke

# Run each command in turn in one process, and print their exit codes and what they have imported.
_PROGRAM = """
import json, sys
from diffuserve.cli.main import main
codes = []
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["diffuserve", *arguments]
    try:
        main()
    except SystemExit as stop:
        codes.append(stop.code)
heavy = ["torch", "transformers", "diffusers", "onnxruntime", "fastapi", "uvicorn", "sqlalchemy"]
print(json.dumps([codes, [name for name in heavy if name in sys.modules]]))
"""
_ENGINE_REFUSALS = (
    (("--model", "tiny-flx"), "no model 'tiny-flx'", "did you mean 'tiny-flux'?"),
    (("--model", "/no/such/folder"), "no model '/no/such/folder'", "not a folder"),
    (("--model", "nobody/model"), "names no commit", "--model nobody/model@COMMIT"),
    (("--model", "black-forest-lab/FLUX.1-dev"), "did you mean 'black-forest-labs/FLUX.1-dev'?", ""),
    (("--device", "gpu"), "device='gpu'", "must be cpu, cuda"),
    (("--dtype", "float17"), "dtype='float17'", "did you mean 'float16'?"),
)
_FILTER_REFUSALS = (
    (("--image-filter", "nfsw"), "image_filter='nfsw'", "must be opennsfw"),
    (("--image-filter", "transformers:/no/such"), "image_filter='transformers:/no/such'", "must be a folder"),
    (("--prompt-filter", "embeded"), "prompt_filter='embeded'", "did you mean 'embedded'?"),
    (("--prompt-filter", "onnx:/no/such"), "/no/such", "is missing"),
)
_REQUEST_REFUSALS = (
    (("--size", "4096x4096"), "width=4096", "32…1024 pixels a side"),
    (("--size", "1024x1040"), "height=1040", "32…1024 pixels a side"),
    (("--steps", "101"), "num_inference_steps=101", "must be in 1…100"),
    (("--guidance", "3.5"), "guidance_scale=3.5", "tiny-flux has no guidance"),
    (("--max-sequence-length", "512"), "max_sequence_length=512", "at most 128 tokens"),
    (("--image", "no-such.png"), "image='no-such.png'", "give the path of an image file"),
    (("--image", "a-file"), "image='a-file'", "is no image"),
    (("--strength", "0.5"), "strength=0.5", "needs an image to start from"),
    (("--sampler", "flow_match_eulr"), "sampler='flow_match_eulr'", "did you mean 'flow_match_euler'?"),
    (("--adapter", "coper-moon"), "adapters='coper-moon'", "did you mean 'copper-moon'?"),
    (("--adapter", "no.safetensors:0.5"), "adapters='no.safetensors'", "there is no such file"),
    (("--adapter-files", "ink=no.safetensors"), "no.safetensors", "no such file"),
    (("-o", "a-file/images"), "output='a-file/images'", "give another folder with -o"),
    (("-o", "a-folder.png"), "output='a-folder.png'", "is a folder"),
)
REFUSALS = (
    *((("generate", "a star", *words), *said) for words, *said in (*_ENGINE_REFUSALS, *_FILTER_REFUSALS)),
    *((("generate", "a star", *words), *said) for words, *said in _REQUEST_REFUSALS),
    *((("serve", *words), *said) for words, *said in (*_ENGINE_REFUSALS, *_FILTER_REFUSALS)),
    (("serve", "--adapter-files", "ink=no.safetensors"), "no.safetensors", "no such file"),
    *((("worker", *words), *said) for words, *said in (*_ENGINE_REFUSALS, *_FILTER_REFUSALS[:2])),
    *((("calibrate", *words), *said) for words, *said in _ENGINE_REFUSALS),
    *((("run", *words), *said) for words, *said in _REQUEST_REFUSALS[:2]),
    (("run", "tiny-flx"), "no model 'tiny-flx'", "did you mean 'tiny-flux'?"),
    (("compile", "tiny-flux", "--device", "cpu"), "device='cpu'", "gain nothing on a CPU"),
    (("demo", "-o", "a-file"), "output='a-file'", "give another folder with -o"),
    (("demo", "-o", "sheet.png"), "output='sheet.png'", "give a folder"),
)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a-file").touch()
    (tmp_path / "a-folder.png").mkdir()


@pytest.mark.parametrize(("arguments", "said", "remedy"), REFUSALS)
def test_a_refusal_is_one_line_with_value_and_remedy(
    arguments: tuple[str, ...], said: str, remedy: str, invoke: Invoke
) -> None:
    before = sorted(Path().rglob("*"))
    refused = invoke(*arguments)
    assert (refused.code, refused.out) == (2, "")
    assert said in refused.err
    assert remedy in refused.err
    assert len(refused.err.splitlines()) == 1
    assert sorted(Path().rglob("*")) == before, "a refused command left something behind"


def test_nothing_heavy_is_imported_before_a_refusal() -> None:
    commands = json.dumps([arguments for arguments, *_ in REFUSALS])
    told = subprocess.run(
        [sys.executable, "-c", _PROGRAM, commands], capture_output=True, text=True, check=True
    )
    codes, heavy = json.loads(told.stdout)
    assert codes == [2] * len(REFUSALS)
    assert heavy == []


def test_a_broken_file_of_a_model_is_refused(tmp_path: Path, invoke: Invoke) -> None:
    folder = shutil.copytree(bundled_models()["tiny-flux"], tmp_path / "model")
    weights = folder / "vae/diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    for command in (("generate", "a star"), ("serve",), ("worker",), ("calibrate",)):
        refused = invoke(*command, "--model", str(folder))
        assert refused.code == 2
        assert f"{weights}: truncated" in refused.err


def test_a_request_above_the_memory_budget_is_refused() -> None:
    config = EngineProcessConfig(engine=EngineConfig(memory_budget_bytes=1 << 20))
    with pytest.raises(InvalidParams, match=r"size='1 × 512x512': would take about .* try \d+x\d+"):
        check_requests(config, [GenerationParams(prompt="a star", width=512, height=512)])
    check_requests(config, [GenerationParams(prompt="a star", width=32, height=32)])


@pytest.mark.parametrize("package", ["torch", "tokenizers"])
def test_a_missing_package_names_the_extra(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == package else find_spec(name))
    with pytest.raises(InvalidParams, match=rf"{package}, .*pip install 'diffuserve\[engine\]'"):
        check_worker([EngineProcessConfig()], num_gpus=1)


def test_of_several_models_broken_ones_are_left_to_the_worker_and_wrong_names_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(bundled_models()["tiny-flux"], broken)
    next(broken.rglob("*.safetensors")).write_bytes(b"truncated")
    names = ("tiny-sd", str(broken))
    check_worker([EngineProcessConfig(model=name) for name in names], num_gpus=1)
    with pytest.raises(InvalidModel):
        check_worker([EngineProcessConfig(model=str(broken))], num_gpus=1)
    with pytest.raises(ModelNotFound):
        check_worker([EngineProcessConfig(model=name) for name in ("tiny-sd", "tiny-sdd")], num_gpus=1)
    with pytest.raises(InvalidParams, match="named twice"):
        check_worker([EngineProcessConfig(model="tiny-sd")] * 2, num_gpus=1)


def test_a_hub_id_of_a_worker_is_checked_and_left_to_its_engine_to_download() -> None:
    check_worker([EngineProcessConfig(model=f"nobody/model@{'0123456789' * 4}")], num_gpus=1)
    with pytest.raises(ModelNotFound, match="names no commit"):
        check_worker([EngineProcessConfig(model="nobody/model")], num_gpus=1)


@pytest.mark.parametrize(
    ("options", "num_gpus", "message"),
    [
        ({"model": "tiny-sd"}, 2, r"StableDiffusionXLPipeline are not cut over ranks; give sequence=2"),
        ({"model": "tiny-video", "parallel": "tensor=4"}, 4, r"6 attention heads, .* may be 1, 2, 3, 6"),
        ({"model": "tiny-video", "parallel": "cfg=3"}, 3, r"WanPipeline has 2 passes; cfg may be up to 2"),
        ({"parallel": "cfg=2"}, 2, r"steps of FluxPipeline have no passes .* give sequence=2"),
        ({"parallel": "tensor=4"}, 4, r"6 attention heads, .* tensor times sequence may be 1, 2, 3, 6"),
        ({"parallel": "tensor=3"}, 3, r"4 attention heads in its text encoder, .* may be 1, 2, 4"),
        ({"parallel": "tensor=2,sequence=2"}, 2, r"needs 4 ranks, one for each GPU, but there are 2"),
        ({}, 1, r"needs 2 ranks, one for each GPU, but there are 1"),
        ({"quantization": Quantization.INT8}, 2, r"weights in int8 are not cut over ranks"),
    ],
)
def test_plans_that_a_model_cannot_follow_are_refused(
    options: dict[str, Any], num_gpus: int, message: str
) -> None:
    config = EngineProcessConfig(**{"device": "cpu", "parallel": "tensor=2"} | options)
    with pytest.raises(InvalidParams, match=rf"parallel=.*{message}"):
        check_worker([config], num_gpus)


def test_weights_of_several_gpus_are_not_offloaded() -> None:
    config = EngineProcessConfig(device="cpu", offload=Offload.LAYERS)
    check_worker([config], num_gpus=1)
    with pytest.raises(InvalidModel, match=r"offload=layers: .* leave it out"):
        check_worker([config], num_gpus=2)


def test_plans_that_a_model_can_follow_are_accepted() -> None:
    check_worker([EngineProcessConfig(device="cpu", parallel="tensor=2")], num_gpus=2)
    check_worker([EngineProcessConfig(device="cpu", parallel="tensor=2")], num_gpus=1, num_nodes=2)
    check_worker([EngineProcessConfig(device="cpu", model="tiny-sd", parallel="sequence=2")], num_gpus=2)
    check_worker([EngineProcessConfig(device="cpu", model="tiny-sd", parallel="cfg=2")], num_gpus=2)
    video = EngineProcessConfig(device="cpu", model="tiny-video", parallel="cfg=2,tensor=2")
    check_worker([video], num_gpus=4)
