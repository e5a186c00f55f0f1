"""The images of a request, as a model takes them: its size, its first step, its references."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.domain.errors import InvalidParams, ModelNotCapable
from diffuserve.domain.models.limits import naming_able
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.input_image import InputImage
from support.small_spec import SPEC, image, resolve

PAINTER = replace(SPEC, max_input_images=1, has_mask=True, has_strength=True)
TRACER = replace(SPEC, has_control_image=True)
READER = replace(SPEC, max_image_prompts=4, image_prompt_tokens=9)
CLIPS = replace(SPEC, max_frames=81, temporal_stride=4, max_input_images=1, has_first_frame=True)
EDITOR = replace(SPEC, max_input_images=2, max_reference_pixels=64 * 64)
MASKER = replace(EDITOR, has_mask=True, masks_references=True, mask_strength=0.8)


@pytest.mark.parametrize(
    ("spec", "values", "field", "remedy"),
    [
        (SPEC, {"image": image()}, "image", "takes no image; leave it out"),
        (PAINTER, {"image": (image(), image())}, "image", "at most 1; leave the others out"),
        (replace(PAINTER, min_input_images=1), {}, "image", "give image"),
        (replace(PAINTER, needs_mask=True), {"image": image()}, "mask", "give mask"),
        (EDITOR, {"image": image(), "mask": image()}, "mask", "leave mask out"),
        (EDITOR, {"image": image(), "strength": 0.5}, "strength", "leave strength out"),
        (MASKER, {"image": image(), "strength": 0.5}, "strength", "give a mask too"),
        (PAINTER, {"image": image(), "strength": 0.2}, "strength", "give at least 0.25"),
        (PAINTER, {"image": image(), "mask": image(64, 64)}, "mask", "does not fit the image of 128x96"),
        (SPEC, {"control_image": image()}, "control_image", "small takes no control image; leave"),
        (SPEC, {"image_prompts": image()}, "image_prompts", "small reads no image prompts; leave"),
        (READER, {"image_prompts": (image(),) * 5}, "image_prompts", "at most 4 images are allowed"),
        (
            replace(READER, max_image_prompts=1),
            {"image_prompts": (image(),) * 2},
            "image_prompts",
            "at most 1",
        ),
        (READER, {"image_prompt_scale": 0.5}, "image_prompt_scale", "give image_prompts"),
        (
            READER,
            {"image_prompts": image(), "image_prompt_scale": float("nan")},
            "image_prompt_scale",
            "finite",
        ),
        (replace(TRACER, needs_control_image=True), {}, "control_image", "give control_image"),
        (
            CLIPS,
            {"image": image(), "last_image": image(), "num_frames": 5},
            "last_image",
            "takes no last frame",
        ),
        (
            replace(CLIPS, has_last_frame=True),
            {"image": image(), "last_image": image()},
            "last_image",
            "is for clips",
        ),
        (SPEC, {"sampler": "euler"}, "sampler", "its own alone"),
        (replace(SPEC, samplers=("ddim", "lcm")), {"sampler": "euler"}, "sampler", "ddim, lcm"),
        (
            replace(SPEC, samplers=("ddim", "lcm")),
            {"sampler": "lcm", "num_inference_steps": 51},
            "num_inference_steps",
            "lcm takes at most 50",
        ),
    ],
)
def test_images_and_samplers_that_a_model_cannot_use_are_refused(
    spec: ModelSpec, values: dict[str, Any], field: str, remedy: str
) -> None:
    with pytest.raises(InvalidParams, match=f"^{field}=.*{remedy}"):
        resolve(spec, **values)


def test_without_a_size_the_image_is_as_large_as_the_one_it_starts_from() -> None:
    resolved = resolve(PAINTER, image=image(200, 100))
    assert (resolved.width, resolved.height) == (192, 96)


def test_without_a_size_the_image_is_as_large_as_the_one_that_guides_it() -> None:
    resolved = resolve(TRACER, control_image=image(200, 100))
    assert (resolved.width, resolved.height) == (192, 96)
    both = replace(TRACER, max_input_images=1, has_strength=True)
    assert resolve(both, image=image(64, 64), control_image=image(200, 100)).width == 64


@pytest.mark.parametrize(("averages", "tokens"), [(False, 18), (True, 9)])
def test_image_prompts_add_tokens_to_the_prompts_and_no_pixels(averages: bool, tokens: int) -> None:
    spec = replace(READER, averages_image_prompts=averages)
    plain, read = resolve(spec), resolve(spec, image_prompts=[image(400, 30), image()])
    assert (read.width, read.height, read.image_prompt_scale) == (plain.width, plain.height, 1.0)
    assert plain.image_prompt_scale is None
    work, before = spec.workload(read), spec.workload(plain)
    assert work.text_tokens - before.text_tokens == work.sequence_tokens - before.sequence_tokens == tokens
    assert work.input_pixels == 0
    assert spec.size_warnings(read) == ()


def test_a_control_image_has_the_models_scale_by_default() -> None:
    spec = replace(TRACER, control_scale=0.7)
    assert resolve(spec, control_image=image()).control_scale == 0.7
    assert resolve(spec, control_image=image(), control_scale=0).control_scale == 0
    assert resolve(spec).control_scale is None


@pytest.mark.parametrize(
    ("asked", "size"),
    [({"width": 64}, (64, 32)), ({"height": 64}, (128, 64)), ({"width": 64, "height": 64}, (64, 64))],
)
def test_a_side_that_is_not_asked_for_follows_the_image(asked: dict[str, int], size: tuple[int, int]) -> None:
    resolved = resolve(PAINTER, image=image(200, 100), **asked)
    assert (resolved.width, resolved.height) == size


def test_a_stretched_image_is_warned_of() -> None:
    def warnings(**values: Any) -> tuple[str, ...]:
        return PAINTER.size_warnings(resolve(PAINTER, **values))

    assert warnings(image=image(200, 100)) == warnings(image=image(200, 100), width=64) == ()
    assert warnings(image=image(207, 199)) == warnings(image=image(333, 97)) == ()
    (warning,) = warnings(image=image(200, 100), width=64, height=64)
    assert warning.startswith("the image of 200x100 is stretched to 64x64; leave out width or height")
    traced = resolve(TRACER, control_image=image(200, 100), width=64, height=64)
    (warning,) = TRACER.size_warnings(traced)
    assert warning.startswith("the control image of 200x100 is stretched to 64x64")


def test_a_small_image_keeps_its_proportions() -> None:
    spec = replace(PAINTER, min_size=128, max_size=512, max_pixels=512 * 512)
    assert resolve(spec, image=image(64, 32)).width == 256
    assert resolve(spec, image=image(20, 2000)).height == 512


@given(st.integers(1, 9_999), st.integers(1, 9_999))
def test_any_image_has_a_size_that_the_model_generates(width: int, height: int) -> None:
    resolve(PAINTER, image=image(width, height))


@pytest.mark.parametrize(
    ("strength", "rounds_up", "steps"),
    [(1.0, False, 28), (0.6, False, 16), (0.6, True, 17), (0.5, False, 14), (0.5, True, 14)],
)
def test_strength_skips_the_first_steps(strength: float, rounds_up: bool, steps: int) -> None:
    spec = replace(PAINTER, strength_rounds_up=rounds_up)
    resolved = resolve(spec, image=image(), strength=strength, num_inference_steps=28)
    assert spec.num_steps(resolved) == spec.workload(resolved).num_inference_steps == steps


def test_the_default_strength_depends_on_a_mask() -> None:
    assert resolve(PAINTER, image=image()).strength == PAINTER.strength
    assert resolve(PAINTER, image=image(), mask=image()).strength == PAINTER.mask_strength
    assert resolve(PAINTER).strength is resolve(EDITOR, image=image()).strength is None


def test_a_default_strength_leaves_a_step() -> None:
    spec = replace(PAINTER, strength=0.3)
    assert spec.num_steps(resolve(spec, image=image(), num_inference_steps=2)) == 1
    assert resolve(spec, image=image(), num_inference_steps=20).strength == 0.3


def test_a_refused_image_names_the_models_that_take_one() -> None:
    with pytest.raises(ModelNotCapable) as refusal:
        resolve(SPEC, control_image=image())
    models = {"small": SPEC, "tracer": TRACER, "another": replace(TRACER, needs_control_image=True)}
    named = naming_able(refusal.value, SPEC, models)
    assert (
        named.remedy == "small takes no control image; leave control_image out, or choose another or tracer"
    )
    assert naming_able(refusal.value, SPEC, {"small": SPEC}) is refusal.value
    assert naming_able(refusal.value, TRACER, models) is refusal.value, "it takes one, but not this one"


@pytest.mark.parametrize("size", [(128, 96), (256, 192), (64, 48), (127, 96), (43, 32)])
def test_a_mask_of_the_images_proportions_fits(size: tuple[int, int]) -> None:
    assert resolve(PAINTER, image=image(), mask=image(*size)).mask == image(*size)


@pytest.mark.parametrize(
    ("sampler", "start", "steps"), [("pndm", 2, 3), ("flow_match_heun", 4, 3), ("", 2, 2)]
)
def test_solvers_that_call_more_often_begin_where_a_step_does(sampler: str, start: int, steps: int) -> None:
    spec = replace(PAINTER, sampler=sampler)
    resolved = resolve(spec, image=image(), strength=0.5, num_inference_steps=4)
    assert (spec.first_step(resolved), spec.num_steps(resolved)) == (start, steps)


def test_references_stand_in_the_sequence_up_to_a_size() -> None:
    plain, small, large = (
        EDITOR.workload(resolve(EDITOR, width=128, height=96, image=images))
        for images in ((), image(32, 32), (image(400, 400), image(64, 32)))
    )
    assert small.sequence_tokens - plain.sequence_tokens == 4
    assert large.sequence_tokens - plain.sequence_tokens == 16 + 8
    assert (plain.input_pixels, large.input_pixels) == (0, 24 * 256)


def test_an_image_and_its_mask_are_encoded_in_the_size_that_is_drawn() -> None:
    spec = replace(PAINTER, pixels_per_token=256)
    masked = spec.workload(resolve(spec, image=image(999, 999), mask=image(99, 99), width=64, height=64))
    assert masked.input_pixels == 2 * 64 * 64
    assert masked.sequence_tokens == spec.workload(resolve(spec, width=64, height=64)).sequence_tokens


def test_a_control_image_and_a_last_frame_are_encoded_in_the_size_that_is_drawn() -> None:
    def pixels(spec: ModelSpec, **values: Any) -> int:
        return spec.workload(resolve(spec, width=64, height=64, **values)).input_pixels

    assert pixels(TRACER, control_image=image(999, 999)) == 64 * 64
    clip = replace(CLIPS, has_last_frame=True, pixels_per_token=256)
    first = pixels(clip, image=image(), num_frames=5)
    assert pixels(clip, image=image(), last_image=image(), num_frames=5) == 2 * first
    whole = replace(clip, encodes_clip=True)
    frames = pixels(whole, image=image(), num_frames=5)
    assert pixels(whole, image=image(), last_image=image(), num_frames=5) == frames > first


def test_a_solver_that_calls_the_model_twice_counts_twice() -> None:
    spec = replace(SPEC, samplers=("flow_match_heun",))
    assert spec.workload(resolve(spec, sampler="flow_match_heun")).num_inference_steps == 7


REFERENCES = replace(
    SPEC, max_input_images=2, max_reference_pixels=128 * 128, max_size=1024, max_pixels=1024 * 1024
)


def test_references_are_brought_to_whole_multiples_of_at_most_the_models_pixels() -> None:
    sizes = [REFERENCES.reference_size(image(*size)) for size in [(100, 60), (300, 100), (5, 4_000)]]
    assert sizes == [(96, 48), (208, 64), (16, 1024)]


def test_without_a_size_the_image_is_as_large_as_the_reference() -> None:
    resolved = resolve(REFERENCES, image=image(4_000, 3_000))
    assert (resolved.width, resolved.height) == REFERENCES.reference_size(image(4_000, 3_000))


SCALED = replace(
    REFERENCES, scales_references=True, reference_text_tokens=20, min_reference_side=8, size_multiple=16
)


@pytest.mark.parametrize(
    ("size", "scaled"), [((100, 60), (160, 96)), ((4_000, 3_000), (160, 96)), ((8, 400), (32, 896))]
)
def test_references_may_be_scaled_to_about_an_area(size: tuple[int, int], scaled: tuple[int, int]) -> None:
    assert SCALED.reference_size(image(*size)) == scaled


def test_of_scaled_references_the_last_one_gives_the_size() -> None:
    resolved = resolve(SCALED, image=(image(30, 90), image(4_000, 3_000)))
    assert (resolved.width, resolved.height) == (160, 96)
    long = resolve(replace(SCALED, max_size=512), image=image(8, 400))
    assert (long.width, long.height) == (32, 512)


def test_a_text_encoder_that_reads_references_has_more_tokens() -> None:
    plain, edited = (SCALED.workload(resolve(SCALED, image=images)) for images in ((), (image(), image())))
    assert edited.text_tokens - plain.text_tokens == 2 * 20
    assert SCALED.reference_tokens(resolve(SCALED, image=(image(), image()))) == 2 * 60


@pytest.mark.parametrize(
    ("size", "remedy"),
    [((7, 9), "at least 8 pixels a side"), ((8, 801), "at most 100 times as long as wide")],
)
def test_references_that_are_too_small_or_too_long_are_refused(size: tuple[int, int], remedy: str) -> None:
    with pytest.raises(InvalidParams, match=f"image='{size[0]}x{size[1]}'.*{remedy}"):
        resolve(SCALED, image=(image(), image(*size)))


@pytest.mark.parametrize("needs_all", [False, True])
def test_a_simple_request_brings_what_the_model_needs(needs_all: bool) -> None:
    spec = replace(
        PAINTER,
        min_input_images=1,
        needs_mask=needs_all,
        has_control_image=True,
        needs_control_image=needs_all,
    )
    params = spec.resolve(spec.simple_request("a star", num_inference_steps=1), seed=0)
    needed = {"image", "mask", "control_image"} if needs_all else {"image"}
    assert {field for field, _ in params.input_images} == needed
    assert all(isinstance(image, InputImage) and image.pixels is not None for _, image in params.input_images)
    assert spec.num_steps(params) == 1


def test_a_masked_reference_is_where_drawing_starts_in_the_size_of_the_result() -> None:
    asked: dict[str, Any] = {
        "image": (image(), image(64, 48)),
        "width": 64,
        "height": 128,
        "num_inference_steps": 10,
    }
    plain, masked = resolve(MASKER, **asked), resolve(MASKER, **asked, mask=image())
    assert (plain.strength, masked.strength) == (None, 0.8)
    assert [MASKER.num_steps(params) for params in (plain, masked)] == [10, 8]
    assert MASKER.reference_sizes(plain) == [(64, 48), (64, 48)]
    assert MASKER.reference_sizes(masked) == [(64, 128), (64, 48)]
    assert [len(MASKER.size_warnings(params)) for params in (plain, masked)] == [0, 1]
