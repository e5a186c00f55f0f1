"""The cost model learns what a step costs, and is not talked out of it by one bad step."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.domain.cost import CostFit, Workload, dot, step_features
from diffuserve.engine.cost_model import CostModel, OnlineFit, load_fit, save_fit

TRUTH = CostFit(encode=(0.003, 2e-5), step=(0.004, 2e-5, 4e-9, 2e-4), decode=(0.002, 6e-8))
PRIOR = CostFit(encode=(0.001, 1e-5), step=(0.002, 6e-5, 1e-9, 1e-4), decode=(0.001, 2e-7))
OBSERVATIONS = st.lists(
    st.tuples(st.tuples(*[st.floats(0, 1e6)] * 3), st.floats(-1, 0) | st.floats(1e-6, 1e3)),
    max_size=40,
)


def make_load(num_sequences: int, sequence_tokens: int, text_tokens: int = 32) -> Workload:
    return Workload(
        num_sequences=num_sequences,
        sequence_tokens=sequence_tokens,
        text_tokens=text_tokens,
        num_pixels=num_sequences * sequence_tokens * 256,
        num_inference_steps=4,
    )


def make_batches(count: int, seed: int) -> list[list[Workload]]:
    """What an engine's steps hold: one to eight requests of many sizes."""
    draw = random.Random(seed)
    return [
        [
            make_load(draw.randint(1, 4), draw.choice([48, 96, 300, 1_000, 2_500]), draw.choice([32, 256]))
            for _ in range(draw.randint(1, 8))
        ]
        for _ in range(count)
    ]


def make_model(num_steps: int, noise: float = 0.05, seed: int = 0) -> CostModel:
    """A model that watched steps which cost what `TRUTH` says, give or take the noise."""
    model, draw = CostModel(PRIOR), random.Random(seed)
    for loads in make_batches(num_steps, seed):
        model.observe_encode(loads, TRUTH.encode_seconds(loads) * draw.gauss(1, noise))
        model.observe_step(loads, TRUTH.step_seconds(loads) * draw.gauss(1, noise))
        model.observe_decode(loads, TRUTH.decode_seconds(loads) * draw.gauss(1, noise))
    return model


def worst_error(fit: CostFit, batches: list[list[Workload]], truth: CostFit = TRUTH) -> float:
    """The largest relative error of a predicted step."""
    return max(abs(fit.step_seconds(loads) / truth.step_seconds(loads) - 1) for loads in batches)


def test_without_a_step_the_prior_holds() -> None:
    model = CostModel(PRIOR)
    assert model.fit == PRIOR
    assert model.estimate(make_load(1, 300)) == PRIOR.estimate(make_load(1, 300))


@pytest.mark.parametrize("seed", range(5))
def test_noisy_steps_teach_it_what_unseen_steps_cost(seed: int) -> None:
    unseen = [[make_load(1, 200)], [make_load(3, 700), make_load(1, 64)], [make_load(4, 2_000)] * 6]
    assert worst_error(PRIOR, unseen) > 0.5
    assert worst_error(make_model(300, seed=seed).fit, unseen) < 0.05


def test_a_few_steps_already_beat_the_prior() -> None:
    unseen = make_batches(50, seed=99)
    assert worst_error(make_model(20).fit, unseen) < 0.25 < worst_error(PRIOR, unseen)


def test_encoding_and_decoding_are_learnt_as_well() -> None:
    fit = make_model(300).fit
    load = make_load(2, 500, text_tokens=128)
    assert fit.encode_seconds([load]) == pytest.approx(TRUTH.encode_seconds([load]), rel=0.05)
    assert fit.decode_seconds([load]) == pytest.approx(TRUTH.decode_seconds([load]), rel=0.05)


def test_steps_of_one_kind_only_leave_the_rest_to_the_prior() -> None:
    """All steps alike: the total is learnt, and no coefficient runs away."""
    model, loads = CostModel(PRIOR), [make_load(1, 96)]
    for _ in range(200):
        model.observe_step(loads, 0.010)
    assert model.fit.step_seconds(loads) == pytest.approx(0.010, rel=0.02)
    assert model.fit.step_seconds([make_load(1, 192)]) < 0.030


def test_a_machine_that_slows_down_is_followed() -> None:
    model, batches = make_model(300), make_batches(1_500, seed=5)
    for loads in batches:
        model.observe_step(loads, 1.5 * TRUTH.step_seconds(loads))
    slower = CostFit(TRUTH.encode, tuple(1.5 * c for c in TRUTH.step), TRUTH.decode)  # type: ignore[arg-type]
    assert worst_error(model.fit, batches[:50], slower) < 0.1


@pytest.mark.parametrize("factor", [1_000.0, 0.001])
def test_a_single_wild_step_does_little(factor: float) -> None:
    model, unseen = make_model(200), make_batches(50, seed=99)
    loads = [make_load(2, 300)]
    model.observe_step(loads, factor * TRUTH.step_seconds(loads))
    for calm in make_batches(8, seed=7):  # until the next refit has certainly seen it
        model.observe_step(calm, TRUTH.step_seconds(calm))
    assert worst_error(model.fit, unseen) < 0.15


def test_a_step_that_took_no_time_teaches_nothing() -> None:
    model = CostModel(PRIOR)
    model.observe_step([make_load(1, 300)], 0.0)
    model.observe_step([make_load(1, 300)], -1.0)
    assert model.fit == PRIOR


@given(OBSERVATIONS)
def test_no_coefficient_is_ever_negative_or_unbounded(
    observations: list[tuple[tuple[float, float, float], float]],
) -> None:
    fit = OnlineFit((1e-3, 1e-6, 1e-9))
    for features, seconds in observations:
        fit.observe(features, seconds)
        assert all(0 <= coefficient < float("inf") for coefficient in fit.coefficients)


def test_a_coefficient_that_was_once_nothing_can_be_learnt_later(tmp_path: Path) -> None:
    """A run of short sequences may find that squares cost nothing; the next run may be of long ones."""
    path = tmp_path / "fit.json"
    save_fit(path, CostFit(TRUTH.encode, (0.004, 2e-5, 0.0, 2e-4), TRUTH.decode))
    model = CostModel.start(PRIOR, path)
    for loads in make_batches(400, seed=3):
        model.observe_step(loads, TRUTH.step_seconds(loads))
    assert worst_error(model.fit, [[make_load(1, 4_000)]]) < 0.1


def test_a_fit_survives_the_way_through_its_file(tmp_path: Path) -> None:
    path = tmp_path / "not" / "there" / "yet" / "fit.json"
    save_fit(path, TRUTH)
    assert load_fit(path) == TRUTH
    save_fit(path, PRIOR)
    assert load_fit(path) == PRIOR
    assert [file.name for file in path.parent.iterdir()] == ["fit.json"], "no half-written file stays"


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "{}", '{"encode": [1, 2]}', "\udcff"])
def test_a_file_that_holds_no_fit_is_as_good_as_none(tmp_path: Path, content: str) -> None:
    path = tmp_path / "fit.json"
    path.write_bytes(content.encode(errors="surrogateescape"))
    assert load_fit(path) is None
    assert CostModel.start(PRIOR, path).fit == PRIOR


@pytest.mark.parametrize("step", ["[0.1, NaN, 0, 0]", "[0.1, -1, 0, 0]", "[Infinity, 0, 0, 0]"])
def test_a_file_with_impossible_seconds_is_as_good_as_none(tmp_path: Path, step: str) -> None:
    path = tmp_path / "fit.json"
    path.write_text(f'{{"encode": [0.1, 0.1], "step": {step}, "decode": [0.1, 0.1]}}')
    assert load_fit(path) is None


def test_a_missing_file_is_as_good_as_none(tmp_path: Path) -> None:
    assert load_fit(tmp_path / "fit.json") is None
    assert CostModel.start(PRIOR, None).fit == PRIOR


def test_a_model_starts_from_what_an_earlier_one_kept(tmp_path: Path) -> None:
    path = tmp_path / "fit.json"
    learnt = make_model(50)
    learnt.save(path)
    assert CostModel.start(PRIOR, path).fit == learnt.fit


def test_a_model_that_watched_no_step_keeps_nothing(tmp_path: Path) -> None:
    CostModel(PRIOR).save(tmp_path / "fit.json")
    assert list(tmp_path.iterdir()) == []


def test_a_perfect_prior_is_kept_by_steps_that_agree_with_it() -> None:
    fit = OnlineFit(TRUTH.step)
    for loads in make_batches(100, seed=1):
        features = step_features(loads)
        fit.observe(features, dot(TRUTH.step, features))
    assert fit.coefficients == pytest.approx(list(TRUTH.step), rel=1e-6)
