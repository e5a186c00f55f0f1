"""Prepared copies hold the weights that a model has in memory, to the bit, and are used for nothing else."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from diffuserve.domain.models.quantization import Quantization
from diffuserve.models.pipelines.base import Pipeline
from diffuserve.models.registry import load_pipeline
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.prepared import NewCopy, NotPrepared, PreparedCopy, WholeCopy
from support.pipeline_weights import weights

CPU = torch.device("cpu")


def make_room(_num_bytes: int) -> None:
    """Have room for everything."""


def load(
    model: str, copy: PreparedCopy | None = None, quantization: Quantization = Quantization.NONE
) -> Pipeline:
    return load_pipeline(model, LoadPlan(CPU, quantization=quantization, copy=copy))


def mapped_files(tensor: Tensor) -> set[str]:
    """Return the file that a tensor's memory is a mapping of, if it is one."""
    found = set()
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, _, end = line.split()[0].partition("-")
        if int(start, 16) <= tensor.data_ptr() < int(end, 16):
            found.add(line[line.find("/") :].strip() if "/" in line else "")
    return found


@pytest.mark.parametrize(
    ("model", "quantization"),
    [
        ("tiny-flux", Quantization.INT4),
        *(
            pytest.param("tiny-flux", kind, marks=pytest.mark.slow)
            for kind in (Quantization.NONE, Quantization.INT8)
        ),
        ("tiny-sd", Quantization.INT8),  # convolutions beside quantized layers
        ("tiny-video", Quantization.NONE),
    ],
)
def test_a_model_has_the_same_weights_from_its_copy(
    model: str, quantization: Quantization, tmp_path: Path
) -> None:
    load(model, NewCopy(tmp_path, make_room), quantization)
    expected = weights(load(model, quantization=quantization))
    found = weights(load(model, WholeCopy(tmp_path, is_strict=True), quantization))
    assert found.keys() == expected.keys()
    assert len(found) > 200
    for name, tensor in found.items():
        assert tensor.stride() == expected[name].stride(), name  # kernels are chosen by it
        assert torch.equal(tensor.flatten().view(torch.uint8), expected[name].flatten().view(torch.uint8))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The copy of tiny-flux."""
    load("tiny-flux", NewCopy(tmp_path, make_room))
    return tmp_path


def test_fused_weights_are_mapped_and_aligned(copy: Path) -> None:
    loaded = weights(load("tiny-flux", WholeCopy(copy, is_strict=True)))
    [file] = copy.glob("transformer.*")
    fused = {name: tensor for name, tensor in loaded.items() if "to_qkv" in name}
    assert fused
    for tensor in fused.values():
        assert mapped_files(tensor) == {str(file)}
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(size))
    assert (8 + size) % 64 == 0
    named = [name for name in header if name != "__metadata__" and not name.startswith("padding/")]
    assert all(header[name]["data_offsets"][0] % 64 == 0 for name in named)


def test_whoever_makes_a_copy_goes_on_with_it(tmp_path: Path) -> None:
    made = weights(load("tiny-flux", NewCopy(tmp_path, make_room)))
    fused = next(tensor for name, tensor in made.items() if "to_qkv" in name)
    assert mapped_files(fused) == {str(next(tmp_path.glob("transformer.*")))}


def test_a_write_to_a_parameter_changes_no_file(copy: Path) -> None:
    before = {file: file.read_bytes() for file in copy.iterdir()}
    for tensor in weights(load("tiny-flux", WholeCopy(copy, is_strict=True))).values():
        tensor.zero_()
    assert {file: file.read_bytes() for file in copy.iterdir()} == before
    again = weights(load("tiny-flux", WholeCopy(copy, is_strict=True)))
    assert any(tensor.any() for tensor in again.values())


def other_dtype(copy: Path) -> None:
    load_pipeline("tiny-flux", LoadPlan(CPU, torch.float64, copy=WholeCopy(copy, is_strict=True)))


def other_quantization(copy: Path) -> None:
    load("tiny-flux", WholeCopy(copy, is_strict=True), Quantization.INT8)


def other_model(copy: Path) -> None:
    load("tiny-sd", WholeCopy(copy, is_strict=True))


def other_files(copy: Path) -> None:
    """A copy's folder is named after the files that it was made from."""
    load("tiny-flux", WholeCopy(copy.rename(copy.with_name("other")), is_strict=True))


def cut_file(copy: Path) -> None:
    file = next(copy.glob("transformer.*"))
    os.truncate(file, file.stat().st_size - 1)
    load("tiny-flux", WholeCopy(copy, is_strict=True))


def missing_file(copy: Path) -> None:
    next(copy.glob("vae.ImageDecoder.*")).unlink()
    load("tiny-flux", WholeCopy(copy, is_strict=True))


@pytest.mark.parametrize(
    "use", [other_dtype, other_quantization, other_model, other_files, cut_file, missing_file]
)
def test_a_copy_is_used_for_what_it_was_made_of_alone(use: Callable[[Path], None], copy: Path) -> None:
    with pytest.raises(NotPrepared):
        use(copy)


def test_a_model_loads_without_what_is_wrong_with_its_copy(
    copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = next(copy.glob("transformer.*"))
    os.truncate(file, file.stat().st_size - 1)
    loaded, expected = weights(load("tiny-flux", WholeCopy(copy))), weights(load("tiny-flux"))
    assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())
    assert f"the prepared copy {copy} is not used for transformer.FluxTransformer" in caplog.text


def test_any_reader_of_safetensors_reads_a_copy(copy: Path) -> None:
    with safe_open(next(copy.glob("transformer.*")), framework="numpy") as reader:
        assert reader.metadata()["format"] == "pt"
        assert "proj_out.bias" in reader.keys()  # noqa: SIM118 (a reader is no dict)
