"""Ranks generate what a single process generates, and a failure on a rank fails a single request."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest
from PIL import Image

from diffuserve.testing.checkpoints import write_flux_checkpoint
from diffuserve.testing.flux2_checkpoints import write_flux2_checkpoint
from diffuserve.testing.qwen_image_checkpoints import write_qwen_image_checkpoint
from diffuserve.testing.unet_checkpoints import write_unet_checkpoint
from diffuserve.testing.wan_checkpoints import write_wan_checkpoint
from diffuserve.testing.z_image_checkpoints import write_z_image_checkpoint
from support.images import psnr
from support.lockstep_program import generate, load, mixed_requests, write
from support.waiting import HANG_SECONDS

DrawnByTwo: TypeAlias = Callable[[str], tuple[Path, list[str | None]]]
_FAULTS = ("start", "denoise", "decode")


@pytest.fixture(scope="module")
def unet_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Rows of requests with and without guidance are shared among the ranks."""
    return str(write_unet_checkpoint(tmp_path_factory.mktemp("model") / "unet"))


@pytest.fixture(scope="module")
def wan_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Clips and images, some from a first frame: guided, and by two factor rows."""
    folder = write_wan_checkpoint(tmp_path_factory.mktemp("model") / "wan", kind="tiny")
    (folder / "diffuserve.json").write_text('{"num_frames": 5, "guidance_scale": 3.0}')
    return str(folder)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Four attention heads, guidance embedded; some requests start from an image, one within a mask."""
    folder = tmp_path_factory.mktemp("model") / "flux"
    return str(write_flux_checkpoint(folder, kind="dev", text_encoder_2={"num_heads": 4}))


@pytest.fixture(scope="module")
def editor(tmp_path_factory: pytest.TempPathFactory) -> str:
    """References stand in the packed row that the ranks share."""
    return str(write_flux_checkpoint(tmp_path_factory.mktemp("model") / "kontext", kind="kontext"))


@pytest.fixture(scope="module")
def z_image_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Guided: an image has two sequences, and padding in each."""
    return str(write_z_image_checkpoint(tmp_path_factory.mktemp("model") / "z-image"))


@pytest.fixture(scope="module")
def packed_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Families of packed images that guide by a second pass."""
    folder = tmp_path_factory.mktemp("packed")
    return (
        str(write_qwen_image_checkpoint(folder / "qwen-image")),
        str(write_flux2_checkpoint(folder / "flux2", kind="base")),
    )


@pytest.fixture(scope="module")
def drawn_by_two(
    checkpoint: str,
    editor: str,
    unet_checkpoint: str,
    wan_checkpoint: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> DrawnByTwo:
    """Tells where two ranks that were started once have drawn with a model, and what failed."""
    models = (checkpoint, editor, unet_checkpoint, wan_checkpoint)
    folders = {model: tmp_path_factory.mktemp("together") for model in models}
    errors = run_ranks(2, folders, "--plan", "sequence=2")
    return lambda model: (folders[model], errors[model])


def run_ranks(num_ranks: int, folders: Mapping[str, Path], *options: str) -> dict[str, list[str | None]]:
    """Run ranks under a real launcher, and return by model the error of each request."""
    command = (sys.executable, "-m", "diffuserve.engine_process.ranks.launcher", f"--ranks={num_ranks}", "--")
    program = ("-m", "support.lockstep_program", "--model", *folders, "--out", *map(str, folders.values()))
    done = subprocess.run(
        [*command, *program, *options], capture_output=True, text=True, timeout=2 * HANG_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    return {model: json.loads((folder / "errors.json").read_text()) for model, folder in folders.items()}


def generate_alone(model: str, folder: Path) -> None:
    write(folder, generate(load(model, None), None, model == "fake"))


def compare(ours: Path, alone: Path, without: Sequence[int] = ()) -> None:
    """Compare every image with that of a single process, at a PSNR of at least 50 dB."""
    expected = {path.name for path in alone.glob("*.png") if int(path.name[0]) not in without}
    assert {path.name for path in ours.glob("*.png")} == expected
    assert all(psnr(Image.open(ours / name), Image.open(alone / name)) >= 50 for name in expected)
    first = [name for name in expected if name.endswith("-0.png")]
    assert len({(alone / name).read_bytes() for name in first}) > len(first) / 2, "all the same"


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    together, alone = tmp_path / "together", tmp_path / "alone"
    together.mkdir()
    alone.mkdir()
    return together, alone


def check_same_images(num_ranks: int, model: str, plan: str, folders: tuple[Path, Path]) -> None:
    together, alone = folders
    assert run_ranks(num_ranks, {model: together}, "--plan", plan) == {model: [None] * 7}
    generate_alone(model, alone)
    compare(together, alone)


def check_faults(num_ranks: int, model: str, plan: str, folders: tuple[Path, Path]) -> None:
    """Let the last rank fail alone, and the rank that decodes a request; the group then serves another."""
    together, alone = folders
    faults = [f"start:{num_ranks - 1}", f"denoise:{num_ranks - 1}", "decode:any"]
    errors = run_ranks(num_ranks, {model: together}, "--plan", plan, "--fail", *faults)[model]
    prompts = [params.prompt for params in mixed_requests(True)] + ["a red circle"]
    for prompt, error in zip(prompts, errors, strict=True):
        if prompt in _FAULTS:
            assert error is not None, f"{prompt} did not fail"
            assert f"told to fail in {prompt}" in error
        else:
            assert error is None
    generate_alone(model, alone)
    compare(together, alone, without=[n for n, prompt in enumerate(prompts) if prompt in _FAULTS])


@pytest.mark.parametrize("shared", ["checkpoint", "editor", "unet_checkpoint", "wan_checkpoint"])
def test_two_ranks_generate_the_images_of_one_process(
    shared: str, drawn_by_two: DrawnByTwo, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Share tokens, also of references and clips, and the rows of a UNet."""
    model = request.getfixturevalue(shared)
    together, errors = drawn_by_two(model)
    assert errors == [None] * 7
    generate_alone(model, tmp_path)
    compare(together, tmp_path)


def test_a_failure_on_a_single_rank_fails_a_single_request(folders: tuple[Path, Path]) -> None:
    """The other requests of the batch give the images of a single process."""
    check_faults(2, "fake", "sequence=2", folders)


@pytest.mark.slow
def test_four_ranks_generate_the_images_of_one_process(checkpoint: str, folders: tuple[Path, Path]) -> None:
    check_same_images(4, checkpoint, "sequence=4", folders)


@pytest.mark.slow
def test_ranks_that_share_weights_and_tokens_generate_the_images_of_one_process(
    checkpoint: str, folders: tuple[Path, Path]
) -> None:
    check_same_images(4, checkpoint, "tensor=2,sequence=2", folders)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shared", "num_ranks", "plan"),
    [
        ("unet_checkpoint", 2, "cfg=2"),
        ("wan_checkpoint", 2, "cfg=2"),
        ("wan_checkpoint", 4, "cfg=2,tensor=2"),
        ("z_image_checkpoint", 2, "sequence=2"),
        ("z_image_checkpoint", 2, "tensor=2"),
        ("z_image_checkpoint", 2, "cfg=2"),
        ("z_image_checkpoint", 4, "cfg=2,sequence=2"),
    ],
)
def test_ranks_that_share_passes_generate_the_images_of_one_process(
    shared: str, num_ranks: int, plan: str, folders: tuple[Path, Path], request: pytest.FixtureRequest
) -> None:
    """Guided requests and others, clips and images, in common steps."""
    check_same_images(num_ranks, request.getfixturevalue(shared), plan, folders)


@pytest.mark.slow
@pytest.mark.parametrize(("num_ranks", "plan"), [(2, "sequence=2"), (2, "tensor=2"), (4, "cfg=2,tensor=2")])
def test_ranks_generate_the_packed_images_of_one_process(
    num_ranks: int, plan: str, packed_checkpoints: tuple[str, ...], tmp_path: Path
) -> None:
    """Some requests start from an image, or show it to the model."""
    folders = {model: tmp_path / Path(model).name for model in packed_checkpoints}
    for folder in folders.values():
        folder.mkdir()
    errors = run_ranks(num_ranks, folders, "--plan", plan)
    for model, together in folders.items():
        assert errors[model] == [None] * 7
        alone = tmp_path / f"{together.name}-alone"
        alone.mkdir()
        generate_alone(model, alone)
        compare(together, alone)


@pytest.mark.slow
def test_a_failure_on_one_of_the_ranks_that_share_weights_fails_a_single_request(
    checkpoint: str, folders: tuple[Path, Path]
) -> None:
    check_faults(2, checkpoint, "tensor=2", folders)


@pytest.mark.slow
def test_a_failure_on_rank_three_fails_a_single_request(checkpoint: str, folders: tuple[Path, Path]) -> None:
    check_faults(4, checkpoint, "sequence=4", folders)
