"""The packed transformer equals diffusers' own, which runs a single clip at a time."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.families.wan.packing import ClipShape, patchify, unpatchify
from support.wan_clips import (
    CHECKPOINTS,
    Checkpoint,
    as_the_reference_pads,
    distance,
    make_clip,
    make_mixed,
    predict,
    predict_by_reference,
    write_checkpoint,
)


@pytest.fixture(scope="module", params=list(CHECKPOINTS))
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return write_checkpoint(tmp_path_factory.mktemp(request.param), CHECKPOINTS[request.param])


@pytest.fixture(scope="module")
def text_to_video(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return write_checkpoint(tmp_path_factory.mktemp("text"), CHECKPOINTS["t2v"])


@pytest.fixture(scope="module")
def image_to_video(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """The checkpoint with all parts."""
    return write_checkpoint(tmp_path_factory.mktemp("image"), CHECKPOINTS["i2v"])


def test_mixed_clips_in_a_pass_equal_the_reference_for_each_alone(checkpoint: Checkpoint) -> None:
    model = checkpoint.ours()
    clips = list(map(as_the_reference_pads, make_mixed(model.config)))
    for clip, velocity in zip(clips, predict(model, clips), strict=True):
        expected = predict_by_reference(checkpoint.theirs(), clip)
        assert velocity.shape == expected.shape
        assert distance(velocity, expected) < 1e-5


def test_padding_that_stands_for_many_zeros_counts_as_often_as_they(text_to_video: Checkpoint) -> None:
    """A prompt of one token and 511 zeros, and one without any, beside the same clip."""
    model = text_to_video.ours()
    clip = make_clip(model.config, 0, (2, 4, 4), text=1)
    long, short = replace(clip, padding=511), replace(clip, padding=0)
    expected = [predict_by_reference(text_to_video.theirs(), each) for each in (long, short)]
    assert max(map(distance, predict(model, [long, short]), expected)) < 1e-5
    assert distance(*expected) > 0.01


def test_the_order_of_clips_changes_no_prediction(text_to_video: Checkpoint) -> None:
    model = text_to_video.ours()
    clips = make_mixed(model.config)
    forward, backward = predict(model, clips), predict(model, clips[::-1])[::-1]
    assert max(map(distance, forward, backward)) < 1e-5


def test_a_single_frame_that_is_given_stands_at_its_own_timestep(text_to_video: Checkpoint) -> None:
    model = text_to_video.ours()
    given = make_clip(model.config, 0, (1, 4, 4), (0.0, 700.0))
    clip = replace(given, timesteps=(0.0,))
    assert distance(*predict(model, [given, clip])) < 1e-6


def test_in_bf16_the_error_is_no_larger_than_the_references(checkpoint: Checkpoint) -> None:
    config = checkpoint.ours().config
    rounded = [as_the_reference_pads(clip) for clip in make_mixed(config, torch.bfloat16)]
    exact = [
        predict_by_reference(checkpoint.theirs(), as_the_reference_pads(clip)) for clip in make_mixed(config)
    ]
    ours = predict(checkpoint.ours(torch.bfloat16), rounded)
    theirs = [predict_by_reference(checkpoint.theirs(torch.bfloat16), clip) for clip in rounded]
    assert {velocity.dtype for velocity in ours} == {torch.bfloat16}
    assert max(map(distance, ours, theirs)) < 0.03
    assert max(map(distance, ours, exact)) < 1.25 * max(map(distance, theirs, exact))


def test_in_bf16_what_the_reference_keeps_in_float32_stays_so(image_to_video: Checkpoint) -> None:
    theirs = dict(image_to_video.theirs(torch.bfloat16).named_parameters())
    ours = dict(image_to_video.ours(torch.bfloat16).named_parameters())
    wide = {name for name, parameter in theirs.items() if parameter.dtype == torch.float32}
    assert {name for name, parameter in ours.items() if parameter.dtype == torch.float32} == wide
    assert len(wide) > 4


def test_every_input_of_a_clip_changes_its_prediction(image_to_video: Checkpoint) -> None:
    model = image_to_video.ours()
    clip, other = (make_clip(model.config, seed, (2, 4, 8), (0.0, 500.0)) for seed in (0, 1))
    changed = {
        "latents": replace(clip, latents=other.latents),
        "text": replace(clip, text=other.text),
        "padding": replace(clip, padding=3),
        "timestep": replace(clip, timesteps=(0.0, 400.0)),
        "first timestep": replace(clip, timesteps=(100.0, 500.0)),
        "no first frame": replace(clip, timesteps=(500.0,)),
    }
    if clip.image is not None:
        changed["image"] = replace(clip, image=other.image)
    before = predict(model, [clip])[0]
    for name, variant in changed.items():
        assert distance(predict(model, [variant])[0], before) > 0.003, name


def test_a_place_in_time_rows_and_columns_changes_a_prediction(text_to_video: Checkpoint) -> None:
    """The same tokens in grids of other proportions."""
    model = text_to_video.ours()
    clip = make_clip(model.config, 0, (2, 4, 8))
    tokens = patchify(clip.latents, model.config.patch_size)
    predictions = []
    for frames, rows, columns in ((2, 2, 4), (4, 2, 2), (2, 4, 2), (1, 4, 4)):
        shape = replace(clip.shape, frames=frames, rows=rows, columns=columns)
        moved = replace(clip, latents=as_latents(tokens, shape))
        predictions.append(patchify(predict(model, [moved])[0], (1, 2, 2)))
    assert min(distance(moved, predictions[0]) for moved in predictions[1:]) > 0.003


def as_latents(tokens: Tensor, shape: ClipShape) -> Tensor:
    """Return the latents whose patches are `tokens`."""
    patches = tokens.unflatten(-1, (-1, 4)).transpose(1, 2).flatten(1)  # in the order of predictions
    return unpatchify(patches, shape, (1, 2, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("field", ["latents", "text", "image", "timesteps"])
def test_a_neighbor_full_of_nan_changes_no_other_clip(
    image_to_video: Checkpoint, dtype: torch.dtype, field: str
) -> None:
    model = image_to_video.ours(dtype)
    clips = make_mixed(model.config, dtype)
    value = getattr(clips[1], field)
    spoiled = (torch.nan,) if field == "timesteps" else value * torch.nan
    change: dict[str, Any] = {field: spoiled}
    together = predict(model, [*clips[:1], replace(clips[1], **change), *clips[2:]])
    finite = [bool(velocity.isfinite().all()) for velocity in together]
    assert finite == [index != 1 for index in range(len(clips))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_fixed_tiles_a_prediction_is_bit_equal_alone_and_in_any_batch(
    image_to_video: Checkpoint, dtype: torch.dtype
) -> None:
    model = image_to_video.ours(dtype, tiled=True)
    clips = make_mixed(model.config, dtype)
    alone = [predict(model, [clip])[0] for clip in clips]
    for batch in (range(8), range(7, -1, -1), (2, 0, 3), (4, 4, 5, 3)):
        together = predict(model, [clips[index] for index in batch])
        for index, velocity in zip(batch, together, strict=True):
            assert torch.equal(velocity, alone[index])


def test_fixed_tiles_change_a_prediction_by_no_more_than_rounding(image_to_video: Checkpoint) -> None:
    clips = make_mixed(image_to_video.ours().config)
    tiled, free = (predict(image_to_video.ours(tiled=flag), clips) for flag in (True, False))
    assert max(map(distance, tiled, free)) < 1e-5


def test_placements_name_every_tensor_of_the_checkpoint_once(checkpoint: Checkpoint) -> None:
    assert set(checkpoint.ours().placements()) == set(checkpoint.theirs().state_dict())


def test_norms_that_the_reference_ignores_are_ignored(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, CHECKPOINTS["i2v"])
    file = tmp_path / "transformer" / "diffusion_pytorch_model.safetensors"
    tensors = load_file(file) | {"blocks.1.attn2.norm_added_q.weight": torch.ones(64)}
    save_file(tensors, file)
    checkpoint.ours()
    save_file(tensors | {"blocks.1.attn2.norm_added_x.weight": torch.ones(64)}, file)
    with pytest.raises(InvalidModel, match=r"unexpected tensor 'blocks.1.attn2.norm_added_x.weight'"):
        checkpoint.ours()


def test_patches_are_read_and_written_as_the_reference_has_them() -> None:
    """Inputs are ordered as a convolution's kernel, outputs by place first."""
    latents = torch.arange(1 * 3 * 2 * 4 * 6).double().view(1, 3, 2, 4, 6)
    tokens = patchify(latents, (1, 2, 2))
    weight = torch.randn(5, 3, 1, 2, 2, dtype=torch.float64)
    convolved = nn.functional.conv3d(latents, weight, stride=(1, 2, 2)).flatten(2)[0].T
    torch.testing.assert_close(tokens @ weight.flatten(1).T, convolved)
    shape = ClipShape(2, 2, 3, 1)
    by_place = tokens.unflatten(-1, (3, 4)).transpose(1, 2).flatten(1)
    assert torch.equal(unpatchify(by_place, shape, (1, 2, 2)), latents)
