"""Images of a random checkpoint change with every tensor and every parameter."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FluxPipeline
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from diffuserve.testing.checkpoints import FluxKind, write_flux_checkpoint

KINDS: tuple[FluxKind, ...] = ("schnell", "dev", "kontext", "fill")
COMPONENTS = ("transformer", "vae", "text_encoder", "text_encoder_2")


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return diffusers' own pipeline for a `dev` checkpoint."""
    folder = write_flux_checkpoint(tmp_path_factory.mktemp("dev"), kind="dev")
    pipeline = FluxPipeline.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def draw(pipeline: Any, prompt: str = "a red circle", seed: int = 1, **options: Any) -> Tensor:
    """Generate an image in 0…1, as (channels, height, width)."""
    arguments = {"width": 64, "height": 48, "num_inference_steps": 2, "guidance_scale": 3.5} | options
    generator = torch.Generator().manual_seed(seed)
    image: Tensor = pipeline(
        prompt, max_sequence_length=32, generator=generator, output_type="pt", **arguments
    ).images[0]
    return image


def tensors_of(folder: Path, component: str) -> dict[str, Tensor]:
    return {
        name: t for file in (folder / component).glob("*.safetensors") for name, t in load_file(file).items()
    }


def test_images_are_neither_flat_nor_saturated(dev: Any) -> None:
    for width, height in ((64, 48), (96, 128)):
        image = draw(dev, width=width, height=height)
        assert image.shape == (3, height, width)
        assert image.std() > 0.1
        assert ((image == 0) | (image == 1)).float().mean() < 0.5


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": "a blue star on the left"},
        {"seed": 2},
        {"num_inference_steps": 3},
        {"guidance_scale": 1.0},
    ],
    ids=lambda change: next(iter(change)),
)
def test_images_change_visibly_with_every_parameter(dev: Any, change: dict[str, Any]) -> None:
    difference = (draw(dev) - draw(dev, **change)).abs().mean() * 255
    assert difference > 3


def test_schnell_has_no_guidance_and_a_static_schedule(tmp_path: Path) -> None:
    write_flux_checkpoint(tmp_path, kind="schnell")
    scheduler = json.loads((tmp_path / "scheduler/scheduler_config.json").read_text())
    assert json.loads((tmp_path / "transformer/config.json").read_text())["guidance_embeds"] is False
    assert (scheduler["use_dynamic_shifting"], scheduler["shift"]) == (False, 1.0)


def test_the_schedule_can_be_chosen(tmp_path: Path) -> None:
    write_flux_checkpoint(tmp_path, kind="dev", use_dynamic_shifting=False, shift=2.5)
    scheduler = json.loads((tmp_path / "scheduler/scheduler_config.json").read_text())
    assert (scheduler["use_dynamic_shifting"], scheduler["shift"]) == (False, 2.5)


@pytest.mark.parametrize("kind", KINDS)
def test_no_tensor_is_constant(tmp_path: Path, kind: FluxKind) -> None:
    write_flux_checkpoint(tmp_path, kind=kind)
    for component in COMPONENTS:
        tensors = tensors_of(tmp_path, component)
        assert tensors
        flat = [name for name, tensor in tensors.items() if tensor.numel() > 1 and tensor.std() < 0.02]
        assert flat == []


def test_equal_seeds_write_equal_weights_and_leave_the_global_generator_alone(tmp_path: Path) -> None:
    state = torch.random.get_rng_state()
    original, same = (write_flux_checkpoint(tmp_path / name, seed=5) for name in ("original", "same"))
    other = write_flux_checkpoint(tmp_path / "other", seed=6)
    assert torch.equal(torch.random.get_rng_state(), state)
    for component in COMPONENTS:
        first, second, third = (tensors_of(folder, component) for folder in (original, same, other))
        assert first.keys() == second.keys() == third.keys()
        assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
        assert not any(torch.equal(tensor, third[name]) for name, tensor in first.items())


def test_shards_hold_the_weights_of_the_single_file(tmp_path: Path) -> None:
    whole = write_flux_checkpoint(tmp_path / "whole")
    sharded = write_flux_checkpoint(tmp_path / "sharded", num_files=3)
    for component in ("transformer", "text_encoder_2"):
        assert len(list((sharded / component).glob("*.safetensors"))) >= 3
        assert len(list((sharded / component).glob("*.safetensors.index.json"))) == 1
        expected, found = tensors_of(whole, component), tensors_of(sharded, component)
        assert expected.keys() == found.keys()
        assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())


def test_weights_have_the_requested_dtype_and_are_readable_by_all_users(tmp_path: Path) -> None:
    write_flux_checkpoint(tmp_path, dtype=torch.bfloat16)
    for file in tmp_path.rglob("*.safetensors"):
        assert file.stat().st_mode & 0o777 == 0o644
        with safe_open(file, framework="pt") as reader:
            assert {reader.get_slice(name).get_dtype() for name in reader.keys()} == {"BF16"}  # noqa: SIM118
