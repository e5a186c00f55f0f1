"""Folders with quantized weights: how they are told, read and refused."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from diffuserve.domain.errors import InvalidModel, InvalidParams
from diffuserve.domain.models.quantization import Quantization
from diffuserve.models.bundled import bundled_models
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.quantized_folder import write_quantized
from diffuserve.models.registry import check_model, load_pipeline
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.stored_quantization import is_companion, stored_quantization, stored_weights
from diffuserve.testing.checkpoints import write_flux_checkpoint

NONE, INT8, FP8, INT4 = Quantization
KINDS = [INT8, FP8, INT4]
MODEL = "tiny-flux"
TRANSFORMER = "transformer/diffusion_pytorch_model.safetensors"
COMPONENTS = ("transformer", "text_encoder", "text_encoder_2")


@pytest.fixture(scope="module")
def quantized_folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[Quantization, Path]:
    """Write the bundled model's folder in each kind."""
    root = tmp_path_factory.mktemp("quantized")
    for kind in KINDS:
        write_quantized(MODEL, root / kind, kind)
    return {kind: root / kind for kind in KINDS}


def copy_of(folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(folder, tmp_path / "copy")


def transformer_of(model: str, quantization: Quantization | None = None) -> dict[str, Tensor]:
    """Return the transformer's tensors, but those in an order that only a kernel knows."""
    pipeline = load_pipeline(model, LoadPlan(torch.device("cpu"), torch.bfloat16, quantization=quantization))
    parameters = dict(pipeline.transformer.named_parameters())  # type: ignore[attr-defined]
    return {name: tensor for name, tensor in parameters.items() if not tensor.is_mkldnn}


def assert_equal(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name].float(), tensor.float()), name


@pytest.mark.parametrize("kind", KINDS)
def test_a_written_folder_holds_what_quantizing_on_load_gives(
    quantized_folders: Mapping[Quantization, Path], kind: Quantization
) -> None:
    folder = quantized_folders[kind]
    assert stored_quantization(ModelFolder(folder), COMPONENTS) is kind
    assert_equal(transformer_of(str(folder)), transformer_of(MODEL, kind))
    assert ModelFolder(folder).name == MODEL
    assert {oct(file.stat().st_mode & 0o444) for file in folder.glob("*/*.safetensors")} == {oct(0o444)}


def test_a_component_of_several_files_is_written_with_an_index(tmp_path: Path) -> None:
    folder = write_flux_checkpoint(tmp_path / "plain", num_files=3)
    write_quantized(str(folder), tmp_path / "int8", INT8)
    assert len(ModelFolder(tmp_path / "int8").weights("transformer")) >= 3
    assert_equal(transformer_of(str(tmp_path / "int8")), transformer_of(str(folder), INT8))


@pytest.mark.parametrize(("kind", "share"), [(INT8, 0.72), (FP8, 0.72), (INT4, 0.62)])
def test_a_written_folder_is_smaller(
    quantized_folders: Mapping[Quantization, Path], kind: Quantization, share: float
) -> None:
    """The modulations and embedders of so small a model are a third of its weights."""
    before = bundled_models()[MODEL] / TRANSFORMER
    assert (quantized_folders[kind] / TRANSFORMER).stat().st_size <= share * before.stat().st_size


def test_the_autoencoder_and_left_out_layers_are_written_as_they_are(
    quantized_folders: Mapping[Quantization, Path],
) -> None:
    vae = "vae/diffusion_pytorch_model.safetensors"
    folder = quantized_folders[INT8]
    assert (folder / vae).read_bytes() == (bundled_models()[MODEL] / vae).read_bytes()
    written, plain = load_file(folder / TRANSFORMER), load_file(bundled_models()[MODEL] / TRANSFORMER)
    for name in ("proj_out.weight", "x_embedder.weight", "transformer_blocks.0.norm1.linear.weight"):
        assert torch.equal(written[name], plain[name])
    assert written["single_transformer_blocks.0.proj_out.weight"].dtype is torch.int8


@pytest.mark.parametrize("wanted", [NONE, FP8, INT4])
def test_an_option_that_contradicts_the_folder_is_refused(
    quantized_folders: Mapping[Quantization, Path], wanted: Quantization
) -> None:
    folder = str(quantized_folders[INT8])
    with pytest.raises(InvalidModel, match=f"quantized to int8 already, which quantization={wanted} cannot"):
        check_model(folder, wanted)
    check_model(folder, INT8)
    check_model(folder)


def test_a_quantized_folder_is_not_quantized_again(
    quantized_folders: Mapping[Quantization, Path], tmp_path: Path
) -> None:
    with pytest.raises(InvalidModel, match="quantized to fp8 already"):
        write_quantized(str(quantized_folders[FP8]), tmp_path / "again", INT8)
    assert not (tmp_path / "again").exists()


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(InvalidParams, match="is there already"):
        write_quantized(MODEL, tmp_path / "mine", INT8)


@pytest.mark.parametrize("kind", [INT8, FP8])
def test_checkpoints_of_torchao_are_read_by_their_names(
    quantized_folders: Mapping[Quantization, Path], kind: Quantization, tmp_path: Path
) -> None:
    folder = copy_of(quantized_folders[kind], tmp_path)
    renamed = {}
    for name, tensor in load_file(folder / TRANSFORMER).items():
        if name.endswith(".weight_scale"):
            renamed[name.replace(".weight_scale", "._weight_scale")] = tensor[:, None].contiguous()
        else:
            is_quantized = name.endswith(".weight") and tensor.dtype in (torch.int8, torch.float8_e4m3fn)
            renamed[name.replace(".weight", "._weight_qdata") if is_quantized else name] = tensor
    save_file(renamed, folder / TRANSFORMER)
    assert_equal(transformer_of(str(folder)), transformer_of(MODEL, kind))


def test_layers_that_only_others_quantize_are_unpacked(
    quantized_folders: Mapping[Quantization, Path], tmp_path: Path
) -> None:
    folder = copy_of(quantized_folders[INT8], tmp_path)
    tensors = load_file(folder / TRANSFORMER)
    plain = tensors["x_embedder.weight"]
    scale = plain.float().abs().amax(dim=1) / 127
    tensors["x_embedder.weight"] = (plain / scale[:, None]).round().to(torch.int8)
    save_file({**tensors, "x_embedder.weight_scale": scale}, folder / TRANSFORMER)
    loaded = transformer_of(str(folder))["x_embedder.weight"]
    assert loaded.dtype is torch.bfloat16
    torch.testing.assert_close(loaded, plain.to(torch.bfloat16), rtol=0.02, atol=float(scale.max()))


@pytest.mark.parametrize("method", ["bitsandbytes", "gguf", "quanto"])
def test_other_formats_are_refused_with_the_remedy(method: str, tmp_path: Path) -> None:
    folder = copy_of(bundled_models()[MODEL], tmp_path)
    config = folder / "transformer/config.json"
    stated = {"quantization_config": {"quant_method": method}}
    config.write_text(json.dumps(json.loads(config.read_text()) | stated))
    with pytest.raises(InvalidModel, match=f"quantized by {method} are not read; .*--quantization int8"):
        check_model(str(folder))


def test_a_folder_of_gguf_files_is_refused_with_the_remedy(tmp_path: Path) -> None:
    folder = copy_of(bundled_models()[MODEL], tmp_path)
    (folder / TRANSFORMER).unlink()
    (folder / "transformer/model-Q4_0.gguf").touch()
    with pytest.raises(InvalidModel, match=r"GGUF are not read from a folder; .*diffuserve import FILE"):
        check_model(str(folder))


def test_codes_of_an_unknown_kind_are_refused(tmp_path: Path) -> None:
    folder = copy_of(bundled_models()[MODEL], tmp_path)
    tensors = load_file(folder / TRANSFORMER)
    codes = torch.zeros_like(tensors["proj_out.weight"], dtype=torch.int32)
    tensors |= {"proj_out.weight": codes, "proj_out.weight_scale": torch.ones(len(codes))}
    save_file(tensors, folder / TRANSFORMER)
    with pytest.raises(InvalidModel, match="weights in I32 are not read"):
        check_model(str(folder))


@pytest.mark.parametrize("change", ["no scale", "fewer scales", "another shape"])
def test_scales_that_do_not_fit_their_weight_are_refused(
    quantized_folders: Mapping[Quantization, Path], change: str, tmp_path: Path
) -> None:
    folder = copy_of(quantized_folders[INT8], tmp_path)
    tensors, name = load_file(folder / TRANSFORMER), "single_transformer_blocks.0.proj_mlp.weight"
    if change == "no scale":
        del tensors[f"{name}_scale"]
    elif change == "fewer scales":
        tensors[f"{name}_scale"] = tensors[f"{name}_scale"][1:].clone()
    else:
        tensors[name] = tensors[name][:, 1:].contiguous()
    save_file(tensors, folder / TRANSFORMER)
    with pytest.raises(InvalidModel, match="proj_mlp"):
        transformer_of(str(folder))


def test_the_tensors_of_a_weight_belong_together() -> None:
    names = ["a.weight", "a.weight_scale", "a.bias", "b._weight_qdata", "b._weight_scale", "c.weight_scale"]
    found = {stored.name: (stored.tensor, stored.scale) for stored in stored_weights(names)}
    assert found == {
        "a.weight": ("a.weight", "a.weight_scale"),
        "a.bias": ("a.bias", None),
        "b.weight": ("b._weight_qdata", "b._weight_scale"),
        "c.weight_scale": ("c.weight_scale", None),
    }
    assert is_companion("b._weight_scale")
    assert not is_companion("b._weight_qdata")
