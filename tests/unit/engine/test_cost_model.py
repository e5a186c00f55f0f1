"""The cost model fits measured steps, and a single outlier changes it little."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.domain.models.cost import FIRST_LATENT_FRAME, CostFit, Workload, dot, step_features
from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.residency import Residency
from diffuserve.engine.costs.cost_model import CostModel, load_fit, save_fit
from diffuserve.engine.costs.robust_fit import RobustFit

TRUTH = CostFit(encode=(0.003, 2e-5), step=(0.004, 2e-5, 4e-9, 2e-4), decode=(0.002, 6e-8))
PRIOR = CostFit(encode=(0.001, 1e-5), step=(0.002, 6e-5, 1e-9, 1e-4), decode=(0.001, 2e-7))
OBSERVATIONS = st.lists(
    st.tuples(st.tuples(*[st.floats(0, 1e6)] * 3), st.floats(-1, 0) | st.floats(1e-6, 1e3)),
    max_size=40,
)


def make_workload(num_sequences: int, sequence_tokens: int, text_tokens: int = 32) -> Workload:
    return Workload(
        num_sequences=num_sequences,
        sequence_tokens=sequence_tokens,
        text_tokens=text_tokens,
        num_pixels=num_sequences * sequence_tokens * 256,
        num_inference_steps=4,
    )


def make_batches(count: int, seed: int) -> list[list[Workload]]:
    """Return steps of an engine: one to eight requests of many sizes each."""
    draw = random.Random(seed)
    return [
        [
            make_workload(
                draw.randint(1, 4), draw.choice([48, 96, 300, 1_000, 2_500]), draw.choice([32, 256])
            )
            for _ in range(draw.randint(1, 8))
        ]
        for _ in range(count)
    ]


def make_model(num_steps: int, noise: float = 0.05, seed: int = 0) -> CostModel:
    """Return a model that observed steps of `TRUTH`'s cost with relative noise."""
    model, draw = CostModel(PRIOR), random.Random(seed)
    for workloads in make_batches(num_steps, seed):
        model.observe_encode(workloads, TRUTH.encode_seconds(workloads) * draw.gauss(1, noise))
        model.observe_step(workloads, TRUTH.step_seconds(workloads) * draw.gauss(1, noise))
        model.observe_decode(workloads, TRUTH.decode_seconds(workloads) * draw.gauss(1, noise))
    return model


def worst_error(fit: CostFit, batches: list[list[Workload]], truth: CostFit = TRUTH) -> float:
    """Return the largest relative error of a predicted step."""
    return max(abs(fit.step_seconds(workloads) / truth.step_seconds(workloads) - 1) for workloads in batches)


def test_without_observations_the_fit_is_the_prior() -> None:
    model = CostModel(PRIOR)
    assert model.fit == PRIOR
    assert model.estimate(make_workload(1, 300)) == PRIOR.estimate(make_workload(1, 300))


@pytest.mark.parametrize("seed", range(5))
def test_noisy_observations_predict_unseen_steps(seed: int) -> None:
    unseen = [
        [make_workload(1, 200)],
        [make_workload(3, 700), make_workload(1, 64)],
        [make_workload(4, 2_000)] * 6,
    ]
    assert worst_error(PRIOR, unseen) > 0.5
    assert worst_error(make_model(300, seed=seed).fit, unseen) < 0.05


def test_a_few_steps_already_beat_the_prior() -> None:
    unseen = make_batches(50, seed=99)
    assert worst_error(make_model(20).fit, unseen) < 0.25 < worst_error(PRIOR, unseen)


def test_encoding_and_decoding_are_fitted_as_well() -> None:
    fit = make_model(300).fit
    workload = make_workload(2, 500, text_tokens=128)
    assert fit.encode_seconds([workload]) == pytest.approx(TRUTH.encode_seconds([workload]), rel=0.05)
    assert fit.decode_seconds([workload]) == pytest.approx(TRUTH.decode_seconds([workload]), rel=0.05)


def test_what_later_frames_of_clips_cost_beside_first_ones_is_learned() -> None:
    """A later latent frame costs this decoder 5.6 first ones; one price for both would be half of it."""
    draw, model = random.Random(0), CostModel(PRIOR)
    truth = replace(TRUTH, later_pixel=TRUTH.decode[1] * 5.6 * FIRST_LATENT_FRAME)
    pixels = 128 * 128
    image = replace(make_workload(1, 64), num_pixels=round(pixels * FIRST_LATENT_FRAME))
    later = replace(image, num_pixels=pixels, later_pixels=pixels)
    for _ in range(200):
        group = [draw.choice((image, later))] * draw.randint(1, 8)
        model.observe_decode(group, truth.decode_seconds(group) * draw.gauss(1, 0.05))
    clip = replace(image, num_pixels=image.num_pixels + 4 * pixels, later_pixels=4 * pixels, num_chunks=5)
    for workload in (image, clip):
        assert model.fit.decode_seconds([workload]) == pytest.approx(
            truth.decode_seconds([workload]), rel=0.1
        )


def test_steps_of_a_single_size_leave_the_rest_to_the_prior() -> None:
    """Check that the total is fitted, and that no coefficient runs away."""
    model, workloads = CostModel(PRIOR), [make_workload(1, 96)]
    for _ in range(200):
        model.observe_step(workloads, 0.010)
    assert model.fit.step_seconds(workloads) == pytest.approx(0.010, rel=0.02)
    assert model.fit.step_seconds([make_workload(1, 192)]) < 0.030


def test_a_machine_that_slows_down_is_followed() -> None:
    model, batches = make_model(300), make_batches(1_500, seed=5)
    for workloads in batches:
        model.observe_step(workloads, 1.5 * TRUTH.step_seconds(workloads))
    slower = CostFit(TRUTH.encode, tuple(1.5 * c for c in TRUTH.step), TRUTH.decode)  # type: ignore[arg-type]
    assert worst_error(model.fit, batches[:50], slower) < 0.1


@pytest.mark.parametrize("factor", [1_000.0, 0.001])
def test_a_single_wild_step_does_little(factor: float) -> None:
    model, unseen = make_model(200), make_batches(50, seed=99)
    workloads = [make_workload(2, 300)]
    model.observe_step(workloads, factor * TRUTH.step_seconds(workloads))
    for calm in make_batches(8, seed=7):  # until the next refit has certainly seen it
        model.observe_step(calm, TRUTH.step_seconds(calm))
    assert worst_error(model.fit, unseen) < 0.15


def test_a_measurement_that_is_not_positive_is_ignored() -> None:
    model = CostModel(PRIOR)
    model.observe_step([make_workload(1, 300)], 0.0)
    model.observe_step([make_workload(1, 300)], -1.0)
    assert model.fit == PRIOR


@given(OBSERVATIONS)
def test_no_coefficient_is_ever_negative_or_unbounded(
    observations: list[tuple[tuple[float, float, float], float]],
) -> None:
    fit = RobustFit((1e-3, 1e-6, 1e-9))
    for features, seconds in observations:
        fit.observe(features, seconds)
        assert all(0 <= coefficient < float("inf") for coefficient in fit.coefficients)


def test_a_coefficient_that_was_kept_as_zero_can_grow_again(tmp_path: Path) -> None:
    """A run of short sequences may find that squares cost nothing; the next run may be of long ones."""
    path = tmp_path / "fit.json"
    save_fit(path, CostFit(TRUTH.encode, (0.004, 2e-5, 0.0, 2e-4), TRUTH.decode))
    model = CostModel.start(PRIOR, path)
    for workloads in make_batches(400, seed=3):
        model.observe_step(workloads, TRUTH.step_seconds(workloads))
    assert worst_error(model.fit, [[make_workload(1, 4_000)]]) < 0.1


def test_a_saved_fit_workloads_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "not" / "there" / "yet" / "fit.json"
    save_fit(path, TRUTH)
    assert load_fit(path) == TRUTH
    save_fit(path, PRIOR)
    assert load_fit(path) == PRIOR
    assert [file.name for file in path.parent.iterdir()] == ["fit.json"], "no half-written file stays"


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "{}", '{"encode": [1, 2]}', "\udcff"])
def test_a_file_without_a_fit_is_ignored(tmp_path: Path, content: str) -> None:
    path = tmp_path / "fit.json"
    path.write_bytes(content.encode(errors="surrogateescape"))
    assert load_fit(path) is None
    assert CostModel.start(PRIOR, path).fit == PRIOR


@pytest.mark.parametrize("step", ["[0.1, NaN, 0, 0]", "[0.1, -1, 0, 0]", "[Infinity, 0, 0, 0]"])
def test_a_file_with_impossible_seconds_is_ignored(tmp_path: Path, step: str) -> None:
    path = tmp_path / "fit.json"
    path.write_text(f'{{"encode": [0.1, 0.1], "step": {step}, "decode": [0.1, 0.1]}}')
    assert load_fit(path) is None


def test_a_missing_file_is_ignored(tmp_path: Path) -> None:
    assert load_fit(tmp_path / "fit.json") is None
    assert CostModel.start(PRIOR, None).fit == PRIOR


def test_a_model_starts_from_the_fit_that_an_earlier_model_saved(tmp_path: Path) -> None:
    path = tmp_path / "fit.json"
    fitted = make_model(50)
    fitted.save(path)
    assert CostModel.start(PRIOR, path).fit == fitted.fit


def test_a_model_without_observations_saves_nothing(tmp_path: Path) -> None:
    CostModel(PRIOR).save(tmp_path / "fit.json")
    assert list(tmp_path.iterdir()) == []


def test_a_perfect_prior_is_kept_by_steps_that_agree_with_it() -> None:
    fit = RobustFit(TRUTH.step)
    for workloads in make_batches(100, seed=1):
        features = step_features(workloads)
        fit.observe(features, dot(TRUTH.step, features))
    assert fit.coefficients == pytest.approx(list(TRUTH.step), rel=1e-6)


def test_engines_of_two_roles_keep_one_file_together(tmp_path: Path) -> None:
    path, decodes = tmp_path / "fit.json", CostModel(PRIOR)
    denoises = make_model(50)
    denoises.save(path)
    for _ in range(50):
        decodes.observe_decode([Workload(1, 1, 1, 1_000_000, 1)], 0.3)
    assert decodes.has_settled
    decodes.save(path)
    kept = load_fit(path)
    assert kept is not None
    assert kept.step == denoises.settled_fit.step
    assert kept.decode == decodes.settled_fit.decode != PRIOR.decode


def test_the_copies_of_every_step_are_measured_whatever_was_guessed_of_them() -> None:
    copies = 3.0  # times those of the guess: the bus is slower
    residency = Residency(Offload.LAYERS, step_bytes=10 * 10**9)
    guess = residency.slowed(PRIOR, "cuda")
    truth = replace(TRUTH, step=(copies * guess.step[0], *TRUTH.step[1:]))
    model, resident = CostModel(guess), make_model(200)
    for workloads in make_batches(200, seed=1):
        model.observe_step(workloads, truth.step_seconds(workloads))
    assert model.fit.step[0] == pytest.approx(truth.step[0], rel=0.1)
    assert model.knee_tokens() > resident.knee_tokens(), "large steps are worth more"
