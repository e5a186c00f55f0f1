"""Urgent work is left to workers on demand, batch work to spot workers, and neither for long."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.domain.jobs.job import Band
from diffuserve.domain.tenant import Plan, Tenant
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.policy.fairness import Claimant, choose_lane, seconds_left
from diffuserve.jobs.policy.lanes import Lane, TenantAccount, latest_start_at, urgent_place
from diffuserve.jobs.policy.placement import ClaimingWorker, favorite, left_until, suits_spot

NOW = 1_800_000_000.0
CONFIG = StoreConfig(on_demand_wait_seconds=2.0, spot_wait_seconds=60.0, deadline_lead_seconds=30.0)
BOTH_PHASES = (("flux", False), ("flux", True))


def lane(band: Band, waited: float = 0.0, seq: int = 1, tenant: str = "ada", is_decode: bool = False) -> Lane:
    account = TenantAccount(Tenant(tenant, Plan(name="test", max_running=8)), 0.0, 0)
    return Lane(f"{band}|{tenant}", band, account, "flux", seq, NOW - waited, NOW - waited, is_decode)


def urgent(band: Band, waited: float = 1_000.0, latest_in: float = 30.0) -> Lane:
    """Return a lane whose head has its latest start so many seconds from now."""
    return lane(band, waited, urgent_place(7, NOW + latest_in))


def choose(
    lanes: Sequence[Lane], is_spot: bool, others: Sequence[tuple[str, bool]] = BOTH_PHASES
) -> Lane | None:
    claimant = Claimant(("flux",), placement=ClaimingWorker(is_spot, frozenset(others)))
    return choose_lane(lanes, claimant, NOW, CONFIG)


@pytest.mark.parametrize(("waited", "is_taken"), [(0.4, False), (0.5, True)])
def test_a_job_whose_model_others_have_in_memory_is_left_to_them_for_a_moment(
    waited: float, is_taken: bool
) -> None:
    ready, config = lane(Band.STANDARD, waited), replace(CONFIG, resident_wait_seconds=0.5)
    claimant = Claimant(("flux",), placement=ClaimingWorker(False, resident_elsewhere=("flux",)))
    assert (choose_lane([ready], claimant, NOW, config) is ready) is is_taken
    left = seconds_left([ready], claimant, NOW, config)
    assert left == (None if is_taken else pytest.approx(0.1, abs=1e-6))


def test_the_longer_of_two_reasons_to_leave_a_job_counts() -> None:
    placement = ClaimingWorker(False, BOTH_PHASES, resident_elsewhere=("flux",))
    assert placement.leaves_until(lane(Band.BATCH), CONFIG) == NOW + CONFIG.spot_wait_seconds
    assert placement.leaves_until(lane(Band.STANDARD), CONFIG) == NOW + CONFIG.resident_wait_seconds


@pytest.mark.parametrize(
    ("band", "is_spot", "waited", "is_taken"),
    [
        (Band.INTERACTIVE, False, 0.0, True),
        (Band.INTERACTIVE, True, 1.9, False),
        (Band.INTERACTIVE, True, 2.0, True),
        (Band.STANDARD, False, 0.0, True),
        (Band.STANDARD, True, 0.0, True),
        (Band.BATCH, True, 0.0, True),
        (Band.BATCH, False, 59.0, False),
        (Band.BATCH, False, 60.0, True),
    ],
)
def test_a_band_waits_for_the_kind_that_it_suits_and_not_for_long(
    band: Band, is_spot: bool, waited: float, is_taken: bool
) -> None:
    ready = lane(band, waited)
    assert (choose([ready], is_spot) is ready) is is_taken


@pytest.mark.parametrize("band", list(Band))
@pytest.mark.parametrize(
    ("is_spot", "latest_in", "is_taken"), [(False, 29.0, True), (True, 29.0, False), (True, 27.0, True)]
)
def test_a_job_close_to_its_deadline_suits_workers_on_demand_whatever_its_band(
    band: Band, is_spot: bool, latest_in: float, is_taken: bool
) -> None:
    ready = urgent(band, latest_in=latest_in)
    assert (choose([ready], is_spot) is ready) is is_taken


def test_a_job_that_was_submitted_close_to_its_deadline_waits_from_then_on() -> None:
    ready = urgent(Band.BATCH, waited=1.0, latest_in=5.0)
    assert left_until(ready, CONFIG) == NOW - 1.0 + 2.0


@pytest.mark.parametrize("others", [(), (("wan", False),), (("flux", True),)])
@pytest.mark.parametrize(("band", "is_spot"), [(Band.INTERACTIVE, True), (Band.BATCH, False)])
def test_nothing_waits_where_no_worker_of_the_other_kind_could_take_it(
    others: Sequence[tuple[str, bool]], band: Band, is_spot: bool
) -> None:
    ready = lane(band)
    assert choose([ready], is_spot, others) is ready


def test_what_is_left_to_others_holds_up_nothing_else() -> None:
    left, behind = lane(Band.INTERACTIVE, tenant="bob"), lane(Band.BATCH)
    assert choose([left, behind], is_spot=True) is behind
    assert choose([left, behind], is_spot=False) is left


def test_each_phase_waits_for_a_worker_that_does_it() -> None:
    decode = lane(Band.BATCH, is_decode=True)
    assert choose([decode], is_spot=False, others=(("flux", False),)) is decode
    assert choose([decode], is_spot=False, others=(("flux", True),)) is None


READY_LANES = st.builds(
    lane,
    st.sampled_from(Band),
    waited=st.floats(0.0, 200.0),
    seq=st.one_of(
        st.integers(1, 1_000), st.builds(urgent_place, st.integers(1, 9), st.floats(NOW - 60.0, NOW + 30.0))
    ),
    tenant=st.sampled_from("abc"),
)


@given(st.lists(READY_LANES, min_size=1, max_size=6))
def test_some_kind_of_worker_takes_a_job_at_once_and_both_do_in_the_end(lanes: list[Lane]) -> None:
    assert choose(lanes, is_spot=True) or choose(lanes, is_spot=False)
    longest = max(CONFIG.spot_wait_seconds, CONFIG.on_demand_wait_seconds)
    for ready in lanes:
        older = replace(ready, head_at=ready.head_at - longest, head_since=ready.head_since - longest)
        if older.is_urgent:
            older = replace(older, head_seq=urgent_place(1, NOW - CONFIG.deadline_lead_seconds))
        assert choose([older], is_spot=True) is older
        assert choose([older], is_spot=False) is older


@given(READY_LANES)
def test_a_job_is_left_by_one_kind_at_most(ready: Lane) -> None:
    left = [
        is_spot
        for is_spot in (False, True)
        if ClaimingWorker(is_spot, BOTH_PHASES).leaves(ready, NOW, CONFIG)
    ]
    suited = suits_spot(ready)
    assert left in ([], [not suited]) if suited is not None else left == []


@given(st.integers(0, 2**31 - 1), st.floats(NOW - 1e6, NOW + 1e6))
def test_an_urgent_place_is_before_all_others_and_tells_the_latest_start(seq: int, latest: float) -> None:
    place = urgent_place(seq, latest)
    assert place < 0
    assert latest_start_at(place) == int(latest)
    assert latest_start_at(seq) is None


ADAPTERS = st.frozensets(st.sampled_from("rstuv"), max_size=4)


@given(READY_LANES, ADAPTERS, st.lists(ADAPTERS, min_size=1, max_size=4))
def test_a_job_is_left_to_those_with_more_of_its_adapters_and_starves_nowhere(
    ready: Lane, wanted: frozenset[str], had: list[frozenset[str]]
) -> None:
    ready = replace(ready, head_adapters=" ".join(sorted(wanted)))
    workers = [
        ClaimingWorker(False, own_adapters=own, adapters_elsewhere={"flux": [*had[:i], *had[i + 1 :]]})
        for i, own in enumerate(had)
    ]
    fresh = replace(ready, head_at=NOW, head_since=NOW)
    counts = [len(wanted & own) for own in had]
    for worker, count in zip(workers, counts, strict=True):
        assert worker.leaves(fresh, NOW, CONFIG) is (count < max(counts))
        assert not worker.leaves(fresh, NOW + CONFIG.resident_wait_seconds, CONFIG)


def test_adapters_of_workers_of_other_models_do_not_count() -> None:
    ready = replace(lane(Band.STANDARD), head_adapters="r s")
    assert not ClaimingWorker(False, adapters_elsewhere={"wan": ["rs"]}).leaves(ready, NOW, CONFIG)
    assert ClaimingWorker(False, adapters_elsewhere={"flux": ["r"]}).leaves(ready, NOW, CONFIG)


WORKERS = st.lists(st.text("abcdef", min_size=1), min_size=2, max_size=6, unique=True)


@given(READY_LANES, st.text(min_size=1), WORKERS)
def test_a_hint_prefers_one_worker_until_that_leaves_and_starves_nowhere(
    ready: Lane, hint: str, workers: list[str]
) -> None:
    """Whatever the order of the workers; and where another one leaves, no hint moves."""
    fresh = replace(ready, head_hint=hint, head_at=NOW, head_since=NOW)
    chosen = favorite(hint, workers)
    assert favorite(hint, workers[::-1]) == chosen
    for worker_id in workers:
        worker = ClaimingWorker(False, worker_id=worker_id, peers={"flux": workers})
        assert worker.leaves(fresh, NOW, CONFIG) is (worker_id != chosen)
        assert not worker.leaves(fresh, NOW + CONFIG.hint_wait_seconds, CONFIG)
        if worker_id != chosen:
            assert favorite(hint, [other for other in workers if other != worker_id]) == chosen
