"""What diffusers runs draws the same where weights wait on the host, and are brought in for each pass."""

from pathlib import Path

import pytest
import torch

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.offload import Offload
from diffuserve.models.families.any_pipeline.proven import OFFLOAD
from diffuserve.models.offload.copier import CudaCopier, SyncCopier
from diffuserve.models.registry import load_pipeline
from diffuserve.models.weights.load_plan import LoadPlan
from support.any_runs import drawn, load_tiny, request_of
from support.pretend_cuda import StreamRace, pretend_cuda
from support.tiny_pipelines import TINY_PIPELINES, tiny_folder

pytestmark = pytest.mark.filterwarnings("ignore")  # diffusers' own
MODES = [mode for mode in Offload if mode is not Offload.NONE]
NAMES = [name for name, tiny in TINY_PIPELINES.items() if tiny.class_name in OFFLOAD]


def test_every_class_that_offloads_is_tried_here() -> None:
    assert {TINY_PIPELINES[name].class_name for name in NAMES} == OFFLOAD


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "sd3" else pytest.mark.slow) for name in NAMES]
)
def test_it_draws_the_same_to_the_bit(tmp_path: Path, name: str) -> None:
    whole = load_tiny(name, tmp_path)
    params = request_of(TINY_PIPELINES[name], whole)
    expected = drawn(whole, params)
    for mode in MODES:
        pipeline = load_tiny(name, tmp_path, offload=mode)
        told = pipeline.describe()
        assert told["offload"] == mode.value
        assert pipeline.residency.host_bytes > 0 or mode is Offload.TEXT  # an encoder may have one layer
        assert drawn(pipeline, params) == expected
        assert drawn(pipeline, params) == expected


def test_other_classes_refuse_it_by_name(tmp_path: Path) -> None:
    plan = LoadPlan(torch.device("cpu"), torch.float32, offload=Offload.TEXT)
    with pytest.raises(InvalidModel, match="StableDiffusion3InpaintPipeline"):
        load_pipeline(str(tiny_folder("sd3-inpaint", tmp_path)), plan)


@pytest.fixture
def unpinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the CUDA copier read from common memory: torch pins none without a GPU, nor is it pretended."""
    monkeypatch.setattr(CudaCopier, "host_run", SyncCopier.host_run)


def test_copies_to_a_pretended_gpu_arrive_before_they_are_read(unpinned: None, tmp_path: Path) -> None:
    with pretend_cuda():
        whole = load_tiny("sd3", tmp_path, device="cuda")
        params = request_of(TINY_PIPELINES["sd3"], whole, num_steps=2)
        expected = drawn(whole, params)
        for mode in MODES:
            assert drawn(load_tiny("sd3", tmp_path, offload=mode, device="cuda"), params) == expected


@pytest.mark.parametrize("mode", MODES)
def test_one_that_does_not_wait_for_them_is_caught(
    unpinned: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Offload
) -> None:
    monkeypatch.setattr(CudaCopier, "wait", lambda _copier, _slot: None)
    with pretend_cuda():
        pipeline = load_tiny("sd3", tmp_path, offload=mode, device="cuda")
        with pytest.raises(StreamRace):
            drawn(pipeline, request_of(TINY_PIPELINES["sd3"], pipeline, num_steps=2))
