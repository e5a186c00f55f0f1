"""Weights are loaded to where they belong; engine and cost model know of it, and others are refused."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.cost import CostFit
from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.quantization import Quantization
from diffuserve.domain.models.residency import RESIDENT, Residency
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.models.layers.linear import Linear
from diffuserve.models.layers.quantized.quantized_layers import QuantizedLayers
from diffuserve.models.layers.quantized.quantized_linear import QuantizedLinear, quantize_layers
from diffuserve.models.layers.quantized.quantized_products import CudaIntProduct
from diffuserve.models.offload.block_slots import slotted
from diffuserve.models.registry import check_model
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import Placement, load_weights
from diffuserve.testing.fake_pipeline import FakePipeline
from support.fake_family.install import install_fake_family, write_fake_model
from support.pretend_cuda import pretend_cuda

FIT = CostFit((0.001, 0.1), (0.002, 0.1, 0.2, 0.3), (0.003, 0.1))
LARGE = GenerationParams(prompt="a star", width=256, height=256, num_inference_steps=1)


class OffloadedFake(FakePipeline):
    """Says that its layers pass through the device."""

    residency = Residency(Offload.LAYERS, 1, 2)


@pytest.mark.parametrize(("make", "num_passes"), [(FakePipeline, 2), (OffloadedFake, 1)])
def test_weights_that_pass_through_the_device_serve_one_forward_pass_at_a_time(
    make: type[FakePipeline], num_passes: int
) -> None:
    with Engine(fake := make(), EngineConfig(num_threads=2, token_budget=100_000)) as engine:
        engine.generate([LARGE, LARGE])
    assert len(fake.denoised_batches) == num_passes


def test_weights_that_are_kept_on_the_host_are_not_read_to_the_device(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(4, 4)}, file := tmp_path / "model.safetensors")
    devices = []
    with pretend_cuda():
        for kept in (False, True):
            with torch.device("meta"):
                layer = nn.Linear(4, 4, bias=False)
            plan = LoadPlan(torch.device("cuda:0"), torch.float32, stay_on_host=kept)
            load_weights(layer, [file], {"weight": Placement("weight")}, plan)
            devices.append(layer.weight.device.type)
    assert devices == ["cuda", "cpu"]


def test_quantized_weights_on_the_host_are_ready_for_the_kernels_of_their_device(tmp_path: Path) -> None:
    names = {"0.weight": torch.ones(32, 32), "0.bias": torch.ones(32)}
    save_file(names, file := tmp_path / "model.safetensors")
    with torch.device("meta"):
        module = nn.Sequential(Linear(32, 32))
        quantize_layers(module, QuantizedLayers(r".*"), Quantization.INT8)
    plan = LoadPlan(torch.device("cuda:0"), torch.bfloat16, stay_on_host=True)
    with pretend_cuda():
        load_weights(module, [file], {name: Placement(name) for name in names}, plan)
    assert isinstance(layer := module[0], QuantizedLinear)
    assert isinstance(layer._product_of, CudaIntProduct)
    assert layer.weight.device.type == "cpu"


def test_a_family_of_another_package_is_refused_before_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(install_fake_family(tmp_path / "site"))
    model = str(write_fake_model(tmp_path / "model"))
    check_model(model)
    with pytest.raises(InvalidModel, match="have no offload=layers; choose none"):
        check_model(model, offload=Offload.LAYERS)
    with pytest.raises(InvalidModel, match="have no offload=text; choose none"):
        Engine.load(Path(model), device="cpu", offload="text")


@pytest.mark.parametrize("mode", Offload)
@pytest.mark.parametrize("model", ["tiny-flux", "tiny-sd", "tiny-video"])
def test_the_families_of_this_package_have_all_of_them(model: str, mode: Offload) -> None:
    assert check_model(model, offload=mode).spec.name == model


def test_a_guess_counts_copies_that_a_size_does_not_change() -> None:
    slowed = Residency(Offload.LAYERS, 0, 0, 50 * 10**9, 25 * 10**9, 0).slowed(FIT, "cuda")
    assert slowed.encode[0] == pytest.approx(2.001)
    assert slowed.step == pytest.approx((1.002, *FIT.step[1:]))
    assert slowed.decode == FIT.decode
    assert slowed.knee_tokens() > FIT.knee_tokens()
    assert RESIDENT.slowed(FIT, "cuda") == FIT


@pytest.mark.parametrize(("layers", "passing"), [(57, 57), (70, 70), (17, 16), (25, 24), (1, 1), (0, 0)])
def test_a_layer_stays_where_few_slots_do_not_divide_all(layers: int, passing: int) -> None:
    assert len(slotted([nn.Identity()] * layers)) == passing
