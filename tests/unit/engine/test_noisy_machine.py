"""The cost model on a machine that other programs use as well: what they add is not learned, or forgotten."""

import random
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import pytest

from diffuserve.domain.models.cost import CostFit, Workload
from diffuserve.engine.costs.cost_model import CostModel, load_fit, save_fit

PRIOR = CostFit(encode=(0.002, 2e-6), step=(0.002, 2.5e-5, 5e-9, 1e-4), decode=(0.001, 1e-6))
TRUTH = CostFit(encode=(0.004, 4e-6), step=(0.012, 1.6e-4, 2e-8, 3e-4), decode=(0.004, 2e-6))
POISONED = CostFit(encode=(0.5, 0.0), step=(1.13, 1e-9, 0.0, 0.0), decode=(0.7, 0.0))
"""Learned while other programs slowed every step down: 1.13 s, of whatever size."""

SIZES = ((1, 96), (2, 96), (4, 96), (1, 176), (1, 288), (3, 288))
SMALL = ((1, 96),)
SLOWDOWN = 20.0
HEALED_AFTER = 24
BELIEVED_AFTER = 240
"""Quiet steps after which a poisoned fit is right; steps after which a slower machine is believed."""


def make_workload(num_sequences: int, sequence_tokens: int) -> Workload:
    return Workload(
        num_sequences=num_sequences,
        sequence_tokens=sequence_tokens,
        text_tokens=32,
        num_pixels=256 * num_sequences * sequence_tokens,
        num_inference_steps=4,
    )


def steps_of(
    truth: CostFit,
    sizes: tuple[tuple[int, int], ...] = SIZES,
    slowdowns: Iterable[float] = (1.0,) * 10_000,
    seed: int = 0,
) -> Iterable[tuple[list[Workload], float]]:
    """Yield steps with their seconds: the true ones, a jitter of 3 %, and what other programs add."""
    draw = random.Random(seed)
    for slowdown in slowdowns:
        workloads = [make_workload(*draw.choice(sizes))]
        yield workloads, truth.step_seconds(workloads) * draw.gauss(1, 0.03) * slowdown


def bursts(quiet: int, busy: int, times: int, seed: int = 0) -> list[float]:
    """Return slowdowns: `quiet` steps without, then `busy` steps of up to `SLOWDOWN`, repeatedly."""
    draw = random.Random(seed)
    noise = [draw.uniform(2, SLOWDOWN) for _ in range(busy)]
    return (quiet * [1.0] + noise) * times


def feed(model: CostModel, steps: Iterable[tuple[list[Workload], float]]) -> None:
    for workloads, seconds in steps:
        model.observe_step(workloads, seconds)


def error_of(model: CostModel, truth: CostFit = TRUTH, sizes: tuple[tuple[int, int], ...] = SIZES) -> float:
    """Return the largest factor by which a predicted step is wrong, less 1."""
    ratios = [
        model.fit.step_seconds([make_workload(*size)]) / truth.step_seconds([make_workload(*size)])
        for size in sizes
    ]
    return max(max(ratio, 1 / ratio) - 1 for ratio in ratios)


def has_sane_knee(model: CostModel) -> bool:
    return TRUTH.knee_tokens() / 4 < model.knee_tokens() < 4 * TRUTH.knee_tokens()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("sizes", [SIZES, SMALL], ids=["sizes", "one size"])
def test_bursts_of_noise_over_most_steps_are_not_learned(
    sizes: tuple[tuple[int, int], ...], seed: int
) -> None:
    model = CostModel(PRIOR)
    feed(model, steps_of(TRUTH, sizes, [1.0] * 20, seed))
    for workloads, seconds in steps_of(TRUTH, sizes, bursts(quiet=25, busy=100, times=4, seed=seed), seed):
        model.observe_step(workloads, seconds)
        assert error_of(model, sizes=sizes) < 0.25
        assert has_sane_knee(model)


def test_a_busy_hour_does_not_undo_a_kept_fit(tmp_path: Path) -> None:
    """Check a start on a busy machine: not one quiet step, and the fit of quieter times holds."""
    path = tmp_path / "fit.json"
    save_fit(path, TRUTH)
    model = CostModel.start(PRIOR, path)
    feed(model, steps_of(TRUTH, slowdowns=bursts(quiet=0, busy=50, times=1)))
    assert error_of(model) < 0.25
    assert has_sane_knee(model)
    model.save(path)
    assert load_fit(path) == TRUTH


@pytest.mark.parametrize("sizes", [SIZES, SMALL], ids=["sizes", "one size"])
def test_a_poisoned_kept_fit_heals_within_few_quiet_steps(
    sizes: tuple[tuple[int, int], ...], tmp_path: Path
) -> None:
    path = tmp_path / "fit.json"
    save_fit(path, POISONED)
    model = CostModel.start(PRIOR, path)
    feed(model, islice(steps_of(TRUTH, sizes), HEALED_AFTER))
    assert error_of(model, sizes=sizes) < 0.15
    assert has_sane_knee(model)
    model.save(path)
    healed = CostModel.start(PRIOR, path)
    assert error_of(healed, sizes=sizes) < 0.15
    assert has_sane_knee(healed)


def test_a_poisoned_fit_heals_in_runs_of_a_few_steps_each(tmp_path: Path) -> None:
    """Check a command that draws one image: it takes four steps and ends."""
    path = tmp_path / "fit.json"
    save_fit(path, POISONED)
    for run in range(2):
        model = CostModel.start(PRIOR, path)
        feed(model, islice(steps_of(TRUTH, SMALL, seed=run), 4))
        model.save(path)
    assert error_of(CostModel.start(PRIOR, path), sizes=SMALL) < 0.15


def test_a_window_full_of_noise_heals_within_few_quiet_steps() -> None:
    model = CostModel(PRIOR)
    feed(model, steps_of(TRUTH, slowdowns=[SLOWDOWN] * 400))
    assert error_of(model) > 1, "so many slow steps are believed, as far as the prior allows"
    feed(model, steps_of(TRUTH, slowdowns=[1.0] * 2 * HEALED_AFTER, seed=1))
    assert error_of(model) < 0.25
    assert has_sane_knee(model)
    settled = CostModel(PRIOR, model.settled_fit)
    assert error_of(settled) < 0.25, "what others get heals as fast"


def test_no_noise_leads_further_from_the_prior_than_its_bound() -> None:
    model = CostModel(PRIOR)
    feed(model, steps_of(TRUTH, slowdowns=[10_000.0] * 300))
    for size in SIZES:
        workloads = [make_workload(*size)]
        assert model.fit.step_seconds(workloads) <= 50.001 * PRIOR.step_seconds(workloads)


@pytest.mark.parametrize("seed", range(3))
def test_a_noisy_fit_is_not_saved(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "fit.json"
    model = CostModel(PRIOR)
    feed(model, steps_of(TRUTH, slowdowns=[1.0, 9.0, 15.0, 20.0] * 5, seed=seed))
    model.save(path)
    assert not path.exists() or error_of(CostModel.start(PRIOR, path)) < 0.25


@pytest.mark.parametrize("factor", [1 / 3, 1 / 1.6, 1.6, 3.0])
def test_a_machine_of_another_speed_is_followed(factor: float) -> None:
    """Check another machine with this one's cache folder, and a clock that is throttled."""
    model = CostModel(PRIOR, TRUTH)
    feed(model, islice(steps_of(TRUTH), 300))
    steps = HEALED_AFTER if factor < 1 else BELIEVED_AFTER
    feed(model, islice(steps_of(TRUTH.scaled(factor), seed=1), steps))
    feed(model, islice(steps_of(TRUTH.scaled(factor), seed=2), 16))
    assert error_of(model, TRUTH.scaled(factor)) < 0.15


@pytest.mark.parametrize("factor", [1 / 3, 3.0])
def test_a_kept_fit_of_another_machine_is_replaced(factor: float) -> None:
    model = CostModel(PRIOR, TRUTH.scaled(factor))
    feed(model, islice(steps_of(TRUTH), 24 if factor > 1 else 72))
    assert error_of(model) < 0.15


def test_a_size_that_costs_more_than_the_kept_fit_says_is_learned_beside_others() -> None:
    """Check a kept fit of small images alone, whose cost of tokens was a guess."""
    model = CostModel(PRIOR, CostFit(TRUTH.encode, (0.027, 1e-6, 1e-9, 1e-4), TRUTH.decode))
    feed(model, islice(steps_of(TRUTH), 120))
    assert error_of(model) < 0.25


def test_steps_cut_short_now_and_then_are_not_learned() -> None:
    model = CostModel(PRIOR)
    feed(model, steps_of(TRUTH, slowdowns=([1.0] * 30 + [0.01]) * 10))
    assert error_of(model) < 0.25


def test_encoding_and_decoding_heal_as_well() -> None:
    model, workloads = CostModel(PRIOR, POISONED), [make_workload(1, 96)]
    for _ in range(HEALED_AFTER):
        model.observe_encode(workloads, TRUTH.encode_seconds(workloads))
        model.observe_decode(workloads, TRUTH.decode_seconds(workloads))
    assert model.fit.encode_seconds(workloads) == pytest.approx(TRUTH.encode_seconds(workloads), rel=0.05)
    assert model.fit.decode_seconds(workloads) == pytest.approx(TRUTH.decode_seconds(workloads), rel=0.05)


def test_what_others_are_told_follows_measurements_before_it_settles(tmp_path: Path) -> None:
    """Check a machine that was never quiet: a server that told the prior would tell seconds of minutes."""
    model, noise = CostModel(PRIOR), [1.0, 9.0, 15.0, 20.0] * 5
    feed(model, steps_of(TRUTH, slowdowns=noise))
    assert not model.has_settled
    assert model.told_fit == model.fit != model.settled_fit
    feed(model, steps_of(TRUTH, slowdowns=[1.0] * HEALED_AFTER))
    assert model.told_fit == model.settled_fit
    model.save(tmp_path / "fit.json")
    later = CostModel.start(PRIOR, tmp_path / "fit.json")
    feed(later, steps_of(TRUTH, slowdowns=noise))
    assert later.told_fit == later.settled_fit, "a kept fit is better than noise"
