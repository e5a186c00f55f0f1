"""Wan's folders say what they draw, and are refused where they do not fit; no weight is read for it."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diffuserve.domain.errors import InvalidModel, InvalidParams, ModelNotCapable
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.folders.names import ALIASES, HUB_COMMITS
from diffuserve.models.registry import check_model, read_offer, read_spec
from diffuserve.testing.wan_checkpoints import WanKind, write_wan_checkpoint

IMAGE = InputImage.blank(64, 48)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Callable[[WanKind], Path]:
    """Return a function that writes each checkpoint once."""
    folder = tmp_path_factory.mktemp("sound")

    def write(kind: WanKind) -> Path:
        return folder / kind if (folder / kind).is_dir() else write_wan_checkpoint(folder / kind, kind=kind)

    return write


@pytest.fixture
def copy(sound: Callable[[WanKind], Path], tmp_path: Path) -> Callable[[WanKind], Path]:
    """Return a function that copies a checkpoint, to be changed."""
    return lambda kind: Path(shutil.copytree(sound(kind), tmp_path / kind))


def change(folder: Path, file: str, **changes: Any) -> None:
    path = folder / file
    values = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    path.write_text(json.dumps(values | changes))


@pytest.mark.parametrize(
    ("kind", "size", "frames", "fps", "multiple", "images"),
    [
        ("t2v", (832, 480), 81, 16, 16, (0, 0)),
        ("a14b", (832, 480), 81, 16, 16, (0, 0)),
        ("i2v", (832, 480), 81, 16, 16, (1, 1)),
        ("flf2v", (832, 480), 81, 16, 16, (1, 1)),
        ("a14b-i2v", (832, 480), 81, 16, 16, (1, 1)),
        ("ti2v", (1280, 704), 121, 24, 32, (0, 1)),
        ("tiny", (832, 480), 81, 16, 16, (0, 1)),
    ],
)
def test_a_folder_says_its_defaults_and_what_an_image_is_for(
    kind: WanKind,
    size: tuple[int, int],
    frames: int,
    fps: int,
    multiple: int,
    images: tuple[int, int],
    sound: Callable[[WanKind], Path],
) -> None:
    spec = read_spec(str(sound(kind)))
    assert (spec.width, spec.height) == size
    assert (spec.num_frames, spec.fps, spec.temporal_stride, spec.size_multiple) == (frames, fps, 4, multiple)
    assert (spec.num_inference_steps, spec.guidance_scale, spec.guidance_passes) == (50, 5.0, 2)
    assert (spec.min_input_images, spec.max_input_images) == images
    assert spec.has_first_frame == bool(images[1])
    assert spec.encodes_clip == bool(images[0])
    assert spec.has_last_frame == (kind in ("flf2v", "a14b-i2v"))
    assert spec.needs_last_frame == (kind == "flf2v")
    assert (spec.sampler, spec.samplers) == (
        "" if kind == "tiny" else "unipc",
        ("dpmpp_2m", "flow_match_euler", "unipc"),
    )
    assert spec.max_sequence_length == spec.longest_sequence_length == 512


def test_sizes_count_latent_frames_and_passes_and_not_the_prompt(sound: Callable[[WanKind], Path]) -> None:
    spec = read_spec(str(sound("t2v")))
    clip = spec.resolve(GenerationParams(prompt="x"), seed=0)
    workload = spec.workload(clip)
    assert (workload.num_sequences, workload.sequence_tokens) == (2, 32_760)
    assert spec.workload(replace(clip, guidance_scale=1.0)).num_sequences == 1
    coarse = read_spec(str(sound("ti2v")))
    assert coarse.workload(coarse.resolve(GenerationParams(prompt="x"), seed=0)).sequence_tokens == 27_280


def test_frames_between_latent_frames_are_refused_with_their_neighbors(
    sound: Callable[[WanKind], Path],
) -> None:
    spec = read_spec(str(sound("t2v")))
    with pytest.raises(ModelNotCapable, match=r"num_frames=15.*a multiple of 4 frames, plus 1; try 13 or 17"):
        spec.resolve(GenerationParams(prompt="x", num_frames=15), seed=0)
    with pytest.raises(ModelNotCapable, match=r"num_frames=165.*at most 161 frames"):
        spec.resolve(GenerationParams(prompt="x", num_frames=165), seed=0)
    with pytest.raises(InvalidParams, match=r"width=840.*multiple of 16 pixels; try 832 or 848"):
        spec.resolve(GenerationParams(prompt="x", width=840), seed=0)
    assert spec.resolve(GenerationParams(prompt="x", num_frames=1), seed=0).fps is None


def test_what_a_model_cannot_do_with_an_image_is_refused(sound: Callable[[WanKind], Path]) -> None:
    with pytest.raises(ModelNotCapable, match="takes no image"):
        read_spec(str(sound("t2v"))).resolve(GenerationParams(prompt="x", image=IMAGE), seed=0)
    with pytest.raises(InvalidParams, match="needs an image"):
        read_spec(str(sound("i2v"))).resolve(GenerationParams(prompt="x"), seed=0)
    with pytest.raises(ModelNotCapable, match="takes at most 1"):
        read_spec(str(sound("tiny"))).resolve(GenerationParams(prompt="x", image=(IMAGE, IMAGE)), seed=0)
    both = GenerationParams(prompt="x", image=IMAGE, last_image=IMAGE)
    with pytest.raises(ModelNotCapable, match="takes no last frame"):
        read_spec(str(sound("i2v"))).resolve(both, seed=0)
    with pytest.raises(InvalidParams, match=r"last_image=None: .* give last_image"):
        read_spec(str(sound("flf2v"))).resolve(GenerationParams(prompt="x", image=IMAGE), seed=0)


def test_a_clip_has_the_proportions_of_its_first_frame_and_the_pixels_of_the_default(
    sound: Callable[[WanKind], Path],
) -> None:
    spec = read_spec(str(sound("i2v")))
    for image in (InputImage.blank(4000, 3000), InputImage.blank(40, 30)):
        resolved = spec.resolve(GenerationParams(prompt="x", image=image), seed=0)
        assert (resolved.width, resolved.height) == (720, 544)
    tall = spec.resolve(GenerationParams(prompt="x", image=InputImage.blank(900, 1600)), seed=0)
    assert (tall.width, tall.height) == (464, 832)


def test_the_settings_file_changes_defaults_and_limits(copy: Callable[[WanKind], Path]) -> None:
    folder = copy("tiny")
    own = {"width": 96, "height": 96, "num_frames": 17, "max_frames": 33, "fps": 8, "guidance_scale": 1.0}
    change(folder, "diffuserve.json", **own, num_inference_steps=4, vae_dtype="bfloat16")
    spec = read_spec(str(folder))
    assert {name: getattr(spec, name) for name in own} == own
    change(folder, "diffuserve.json", num_frames=37)
    with pytest.raises(InvalidModel, match="the default num_frames=37"):
        read_spec(str(folder))
    change(folder, "diffuserve.json", num_frames=17, temporal_stride=8)
    with pytest.raises(InvalidModel, match="unknown setting 'temporal_stride'"):
        read_spec(str(folder))


@pytest.mark.parametrize(
    ("kind", "file", "changes", "words"),
    [
        ("t2v", "model_index.json", {"boundary_ratio": 1.5}, "boundary_ratio=1.5"),
        ("t2v", "model_index.json", {"boundary_ratio": 0.9}, "transformer_2/config.json is missing"),
        ("t2v", "model_index.json", {"expand_timesteps": "yes"}, "expand_timesteps='yes'"),
        ("t2v", "model_index.json", {"_class_name": "WanImageToVideoPipeline"}, "must be 36"),
        (
            "t2v",
            "model_index.json",
            {"_class_name": "WanDancePipeline"},
            "'WanDancePipeline', which diffusers .* does not have",
        ),
        ("t2v", "transformer/config.json", {"in_channels": 20}, "in_channels=20 .* must be 16 or 36"),
        ("ti2v", "transformer/config.json", {"in_channels": 52}, "in_channels=52 .* must be 24"),
        ("t2v", "transformer/config.json", {"text_dim": 64}, "text_dim=64 must be .* d_model=32"),
        ("t2v", "transformer/config.json", {"patch_size": [1, 2, 4]}, "patch_size"),
        ("t2v", "transformer/config.json", {"patch_size": [2, 2, 2]}, "patch_size"),
        ("t2v", "transformer/config.json", {"num_layers": 10**9}, "num_layers"),
        ("i2v", "transformer/config.json", {"pos_embed_seq_len": 514}, "pos_embed_seq_len=514 must be 10"),
        ("t2v", "transformer/config.json", {"pos_embed_seq_len": 514}, "it has no image_dim"),
        ("i2v", "transformer/config.json", {"image_dim": 32}, "image_dim=32 must be .* hidden_size=24"),
        ("i2v", "image_encoder/config.json", {"image_size": 42}, "crop_size=28x28 must be .* image_size=42"),
        ("i2v", "image_processor/preprocessor_config.json", {"do_center_crop": False}, "do_center_crop"),
        ("a14b", "transformer_2/config.json", {"num_layers": 3}, "must have equal shapes"),
        ("t2v", "vae/config.json", {"z_dim": 12}, "z_dim=12"),
        ("t2v", "vae/config.json", {"scale_factor_temporal": 8}, "scale_factor_temporal=8"),
        ("t2v", "diffuserve.json", {"guidance_scale_2": "low"}, "guidance_scale_2"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused_by_name(
    kind: WanKind, file: str, changes: dict[str, Any], words: str, copy: Callable[[WanKind], Path]
) -> None:
    folder = copy(kind)
    change(folder, file, **changes)
    with pytest.raises(InvalidModel, match=words) as refusal:
        read_offer(str(folder))
    assert str(folder) in str(refusal.value)


@pytest.mark.parametrize(
    ("kind", "file"),
    [
        ("t2v", "tokenizer/tokenizer_config.json"),
        ("t2v", "scheduler/scheduler_config.json"),
        ("t2v", "text_encoder/model.safetensors"),
        ("a14b", "transformer_2/diffusion_pytorch_model.safetensors"),
        ("i2v", "image_encoder/model.safetensors"),
        ("i2v", "image_processor/preprocessor_config.json"),
    ],
)
@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_file_that_is_missing_or_cut_is_found_by_the_headers(
    kind: WanKind, file: str, damage: str, copy: Callable[[WanKind], Path]
) -> None:
    path = copy(kind) / file
    content = path.read_bytes()
    path.unlink()
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    with pytest.raises(InvalidModel, match=file.split("/")[0]):
        check_model(str(path.parents[1]))


def test_a_folder_is_checked_without_torch(sound: Callable[[WanKind], Path]) -> None:
    program = (
        "import sys; from diffuserve.models.registry import check_model, read_offer\n"
        "for folder in sys.argv[1:]: check_model(folder); read_offer(folder)\n"
        "assert not {'torch', 'ftfy', 'diffusers'} & set(sys.modules), 'torch was imported'"
    )
    folders = [str(sound("i2v")), str(sound("a14b"))]
    done = subprocess.run(
        [sys.executable, "-c", program, *folders], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_short_names_stand_for_commits() -> None:
    names = [name for name in ALIASES if name.startswith("wan-")]
    assert {"wan-2.1-1.3b", "wan-2.2-5b"} <= set(names)
    assert all(len(HUB_COMMITS[ALIASES[name]]) == 40 for name in names)
