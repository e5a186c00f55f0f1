"""Defaults and limits of a model."""

from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.domain.codec import from_values
from diffuserve.domain.errors import ImageTooLarge, InvalidParams, ModelNotCapable
from diffuserve.domain.models.cost import FIRST_LATENT_FRAME
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from support.small_spec import SPEC, resolve

CAPABLE = replace(
    SPEC, guidance_scale=3.5, has_guidance=True, has_negative_prompt=True, max_frames=81, name="capable"
)
SIZES = st.none() | st.integers(2, 16).map(lambda multiple: 16 * multiple)


def test_missing_parameters_get_the_models_defaults() -> None:
    assert resolve() == GenerationParams(
        prompt="a star",
        width=128,
        height=96,
        num_inference_steps=4,
        guidance_scale=0.0,
        max_sequence_length=32,
        num_frames=1,
        seed=7,
    )


LEARNED = replace(SPEC, learned_min_size=96, learned_max_size=256)


@pytest.mark.parametrize("size", [(96, 96), (256, 96), (128, 256)])
def test_sizes_that_a_model_has_learned_give_no_warning(size: tuple[int, int]) -> None:
    assert LEARNED.size_warnings(resolve(LEARNED, width=size[0], height=size[1])) == ()


@pytest.mark.parametrize("size", [(80, 96), (96, 272), (64, 64), (512, 128)])
def test_other_sizes_give_a_warning_with_those_that_it_has_learned(size: tuple[int, int]) -> None:
    [warning] = LEARNED.size_warnings(resolve(LEARNED, width=size[0], height=size[1]))
    assert "small has learned images of 96 to 256 pixels a side" in warning
    assert f"at {size[0]}x{size[1]}" in warning


def test_a_model_that_states_no_sizes_gives_no_warning() -> None:
    assert SPEC.size_warnings(resolve(width=512, height=32)) == ()


def test_given_parameters_are_kept() -> None:
    asked = GenerationParams(
        prompt="a star",
        negative_prompt="a circle",
        width=64,
        height=256,
        num_inference_steps=9,
        guidance_scale=0.0,
        max_sequence_length=64,
        seed=0,
        num_images=4,
        num_frames=81,
        fps=24,
    )
    assert CAPABLE.resolve(asked, seed=7) == asked


@given(
    values=st.fixed_dictionaries(
        {},
        optional={
            "width": SIZES,
            "height": SIZES,
            "num_inference_steps": st.none() | st.integers(1, 100),
            "guidance_scale": st.none() | st.floats(0, 20),
            "seed": st.none() | st.integers(0, 1_000),
            "num_images": st.integers(1, 4),
            "num_frames": st.none() | st.integers(1, 81),
            "max_sequence_length": st.none() | st.integers(1, 64),
            "negative_prompt": st.text(st.characters(codec="utf-8"), max_size=5),
        },
    ),
    seeds=st.tuples(st.integers(0, 1_000), st.integers(0, 1_000)),
)
def test_resolving_again_changes_nothing_with_any_seed(
    values: dict[str, Any], seeds: tuple[int, int]
) -> None:
    once = resolve(CAPABLE, seeds[0], **values)
    assert CAPABLE.resolve(once, seeds[1]) == once


@pytest.mark.parametrize(
    ("values", "field", "remedy"),
    [
        ({"width": 16}, "width", "32…512"),
        ({"height": 528}, "height", "32…512"),
        ({"width": 512, "height": 256}, "size", "65,536 pixels"),
        ({"num_images": 5}, "num_images", "at most 4"),
        ({"max_sequence_length": 65}, "max_sequence_length", "at most 64"),
    ],
)
def test_a_limit_of_the_model_is_refused_with_its_name(
    values: dict[str, Any], field: str, remedy: str
) -> None:
    with pytest.raises(InvalidParams, match=f"^{field}=.*small .*{remedy}") as refusal:
        resolve(**values)
    assert not isinstance(refusal.value, ModelNotCapable)


def test_limits_themselves_are_allowed() -> None:
    resolve(width=32, height=512, num_images=4, max_sequence_length=64)
    resolve(width=256, height=256)


@pytest.mark.parametrize(
    ("field", "value"), [("negative_prompt", "blurry"), ("guidance_scale", 3.5), ("num_frames", 2)]
)
def test_a_parameter_that_the_model_cannot_honor_is_refused_and_not_dropped(field: str, value: Any) -> None:
    with pytest.raises(ModelNotCapable, match=f"^{field}=.*small ") as refusal:
        resolve(SPEC, **{field: value})
    assert refusal.value.code == "model_not_capable"
    assert getattr(resolve(CAPABLE, **{field: value}), field) == value


@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_a_model_without_guidance_accepts_scales_that_mean_none(scale: float) -> None:
    assert resolve(guidance_scale=scale).guidance_scale == scale


@pytest.mark.parametrize(
    ("own", "named", "remedy"),
    [
        ("euler", None, "the sampler euler does not take it; give sampler ddim or leave it out"),
        ("ddim", "euler", "the sampler euler does not take it; give sampler ddim or leave it out"),
        ("", None, "small's own sampler does not take it; give sampler ddim or leave it out"),
    ],
)
def test_eta_is_refused_for_samplers_that_do_not_take_it(own: str, named: str | None, remedy: str) -> None:
    spec = replace(SPEC, samplers=("ddim", "euler"), sampler=own)
    with pytest.raises(ModelNotCapable, match=f"^eta=0.5: {remedy}$"):
        resolve(spec, sampler=named, eta=0.5)
    assert resolve(spec, sampler=named, eta=0).eta == 0, "which asks for nothing"
    assert resolve(spec, sampler="ddim", eta=0.5).eta == 0.5


def test_eta_is_taken_by_the_checkpoints_own_sampler() -> None:
    assert resolve(replace(SPEC, sampler="ddim"), eta=1.0).eta == 1.0
    with pytest.raises(ModelNotCapable, match="small's own sampler does not take it; leave it out"):
        resolve(SPEC, eta=1.0)


def test_too_many_frames_are_refused_with_the_limit() -> None:
    with pytest.raises(ModelNotCapable, match=r"num_frames=82.*at most 81"):
        resolve(CAPABLE, num_frames=82)
    with pytest.raises(ModelNotCapable, match="single images"):
        resolve(num_frames=2)


def test_a_drawn_seed_must_leave_room_for_every_image() -> None:
    with pytest.raises(InvalidParams, match=r"^seed="):
        resolve(seed=2**63 - 1, num_images=2)


VIDEO = replace(CAPABLE, guidance_passes=2, temporal_stride=4, pixels_per_token=256, name="video")


@pytest.mark.parametrize(("scale", "passes"), [(0.0, 1), (1.0, 1), (1.5, 2)])
def test_only_guidance_above_one_takes_more_passes(scale: float, passes: int) -> None:
    params = resolve(VIDEO, guidance_scale=scale)
    assert VIDEO.num_passes(params) == passes
    assert VIDEO.workload(params).num_sequences == passes
    assert VIDEO.workload(params).text_tokens == passes * 32, "each pass reads a prompt of its own"
    assert CAPABLE.workload(params).num_sequences == 1, "guidance that is an input takes no pass of its own"


@pytest.mark.parametrize(("scale", "passes"), [(0.0, 1), (0.5, 2), (1.0, 2)])
def test_a_model_may_guide_at_every_scale_but_zero(scale: float, passes: int) -> None:
    spec = replace(VIDEO, guided_above=0.0)
    assert spec.workload(resolve(spec, guidance_scale=scale)).num_sequences == passes


def test_a_video_counts_latent_frames() -> None:
    workload = VIDEO.workload(resolve(VIDEO, width=64, height=96, num_frames=17, guidance_scale=0.0))
    assert workload.sequence_tokens == 32 + 5 * 24
    assert workload.num_pixels == 64 * 96 // 3 + 4 * 64 * 96, "the first latent frame is one frame"
    assert workload.num_chunks == 5


@pytest.mark.parametrize("num_images", [1, 3])
@pytest.mark.parametrize("num_frames", [1, 5, 17])
def test_the_chunks_of_clips_are_their_whole_size(num_frames: int, num_images: int) -> None:
    params = resolve(VIDEO, width=64, height=96, num_frames=num_frames, num_images=num_images)
    ends = range(1, num_frames + 1, 4)
    chunks = [VIDEO.chunk_workload(params, max(0, end - 4), end) for end in ends]
    whole = VIDEO.workload(params)
    assert whole.num_pixels == num_images * sum(chunk.num_pixels for chunk in chunks)
    assert whole.num_chunks == (num_images * len(chunks) if num_frames > 1 else 1)
    assert {chunk.num_chunks for chunk in chunks} == {1}


def test_a_prompt_that_is_read_by_cross_attention_takes_no_tokens_of_a_step() -> None:
    crossed = replace(SPEC, has_joint_attention=False)
    params = resolve(crossed)
    assert crossed.workload(params).sequence_tokens == crossed.image_tokens(params) == 48
    assert SPEC.workload(params).sequence_tokens == 48 + 32


@pytest.mark.parametrize(("frames", "nearest"), [(2, "1 or 5"), (16, "13 or 17"), (80, "77 or 81")])
def test_frames_between_two_latent_frames_are_refused_with_the_nearest(frames: int, nearest: str) -> None:
    with pytest.raises(ModelNotCapable, match=f"num_frames={frames}.*try {nearest}"):
        resolve(VIDEO, num_frames=frames)


def test_a_spec_of_another_version_still_loads() -> None:
    stored = asdict(SPEC) | {"from_a_later_version": 1}
    for name in ("guidance_passes", "temporal_stride", "has_joint_attention"):
        del stored[name]
    assert from_values(ModelSpec, stored) == SPEC
    with pytest.raises(ValueError, match="family"):
        from_values(ModelSpec, {"name": "half"})


@pytest.mark.parametrize(
    ("size_multiple", "size", "proposed"), [(16, 100, "96 or 112"), (8, 100, "96 or 104")]
)
def test_a_size_between_two_multiples_is_refused_with_both(
    size_multiple: int, size: int, proposed: str
) -> None:
    with pytest.raises(
        InvalidParams, match=f"^width={size}: must be a multiple of {size_multiple} .*{proposed}$"
    ):
        resolve(replace(SPEC, size_multiple=size_multiple), width=size)


@given(st.integers(32, 512).filter(lambda size: size % 16 != 0))
def test_the_sizes_that_a_refusal_proposes_are_accepted(size: int) -> None:
    with pytest.raises(InvalidParams) as refusal:
        resolve(height=size)
    for proposed in refusal.value.remedy.split("try ")[1].split(" or "):
        assert resolve(height=int(proposed)).height == int(proposed)


CLIPS = replace(SPEC, max_frames=81, temporal_stride=4, num_frames=17, fps=24, name="clips")


def test_a_clip_has_the_models_length_and_rate() -> None:
    resolved = resolve(CLIPS)
    assert (resolved.num_frames, resolved.fps) == (17, 24)


def test_a_single_frame_of_a_model_of_clips_has_no_rate() -> None:
    assert resolve(CLIPS, num_frames=1).fps is None
    with pytest.raises(InvalidParams, match=r"^fps=12.*leave it out"):
        resolve(CLIPS, num_frames=1, fps=12)


@pytest.mark.parametrize(("seconds", "fps", "num_frames"), [(1.0, None, 25), (0.01, None, 1), (2.0, 16, 33)])
def test_seconds_become_the_nearest_number_of_frames(
    seconds: float, fps: int | None, num_frames: int
) -> None:
    assert CLIPS.frames_in(seconds, fps) == num_frames


def test_a_first_frame_is_encoded_once_however_long_the_clip() -> None:
    spec = replace(CLIPS, has_first_frame=True, max_input_images=1)
    resolved = resolve(spec, image=InputImage.blank(128, 96))
    workload = spec.workload(resolved)
    assert workload.input_pixels == round(128 * 96 * FIRST_LATENT_FRAME)
    assert workload.sequence_tokens == CLIPS.workload(resolve(CLIPS, width=128, height=96)).sequence_tokens


@pytest.mark.parametrize(
    ("size", "nearest"),
    [((512, 512), "256x256"), ((512, 256), "352x176"), ((272, 256), "256x240"), ((160, 512), "128x448")],
)
def test_an_image_of_too_many_pixels_is_refused_with_the_nearest_size(
    size: tuple[int, int], nearest: str
) -> None:
    spec = replace(SPEC, min_size=16, max_size=512, max_pixels=256 * 256, size_multiple=16)
    with pytest.raises(ImageTooLarge, match=f"at most 65,536 pixels an image; try {nearest}$"):
        resolve(spec, width=size[0], height=size[1])
    width, height = map(int, nearest.split("x"))
    assert resolve(spec, width=width, height=height).width == width
