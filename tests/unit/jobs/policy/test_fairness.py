"""The choice of the lane that is served next."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diffuserve.domain.jobs.job import Band
from diffuserve.domain.tenant import Plan, Tenant
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.policy.fairness import BAND_SECONDS, Claimant, choose_lane
from diffuserve.jobs.policy.lanes import Lane, TenantAccount

NOW = 1_000.0
CONFIG = StoreConfig(
    ageing_seconds=60.0, affinity_seconds=5.0, affinity_wait_seconds=30.0, affinity_lookahead=4
)


def account(name: str, vtime: float = 0.0, num_running: int = 0, max_running: int = 8) -> TenantAccount:
    plan = Plan(name="test", max_running=max_running)
    return TenantAccount(Tenant(name, plan), vtime, num_running)


def lane(
    who: TenantAccount,
    band: Band = Band.STANDARD,
    model: str = "flux",
    seq: int = 1,
    waited: float = 0.0,
    head_for: float | None = None,
) -> Lane:
    since = NOW - (waited if head_for is None else head_for)
    return Lane(f"{band}|{who.tenant.id}|{model}", band, who, model, seq, NOW - waited, since)


def choose(
    *lanes: Lane,
    models: Sequence[str] = ("flux", "wan"),
    resident: Sequence[str] = (),
    loads: Mapping[str, float] | None = None,
) -> Lane | None:
    return choose_lane(lanes, Claimant(models, resident, load_seconds=loads or {}), NOW, CONFIG)


def test_the_tenant_that_is_furthest_behind_goes_first() -> None:
    ahead, behind = lane(account("ada", vtime=2.0)), lane(account("bob", vtime=1.0))
    assert choose(ahead, behind) is behind


@pytest.mark.parametrize(("ahead", "goes_first"), [(BAND_SECONDS, True), (BAND_SECONDS + 1, False)])
def test_bands_come_before_virtual_time_within_a_bound(ahead: float, goes_first: bool) -> None:
    """Else whoever names the best band for everything would have everything."""
    urgent, other = lane(account("ada", vtime=ahead), Band.INTERACTIVE), lane(account("bob"))
    batch = lane(account("eve", vtime=1.0), Band.BATCH)
    assert choose(other, urgent, batch) is (urgent if goes_first else other)


@pytest.mark.parametrize("band", [Band.BATCH, Band.STANDARD])
def test_a_long_queue_that_has_aged_goes_before_no_tenant_that_is_further_behind(band: Band) -> None:
    old, new = lane(account("ada", vtime=2.0), band, waited=500.0), lane(account("bob", vtime=1.0))
    assert choose(old, new) is new
    urgent = lane(account("eve", vtime=1.5), Band.INTERACTIVE)
    assert choose(old, new, urgent) is new
    assert choose(old, urgent) is urgent


def test_what_has_aged_goes_before_better_bands_of_tenants_that_are_ahead() -> None:
    old, worse = lane(account("ada", vtime=1.0), waited=70.0), lane(account("bob"), Band.BATCH)
    urgent = lane(account("eve", vtime=2.0), Band.INTERACTIVE)
    assert choose(old, urgent, worse) is old, "a worse band that has not aged waits"


def test_a_tenant_that_was_idle_on_a_model_is_owed_nothing_there() -> None:
    idle, busy = lane(account("ada")), lane(account("bob", vtime=7.0))
    idle.handicap = 8.0
    assert choose(idle, busy) is busy


@pytest.mark.parametrize(("waited", "goes_first"), [(59.0, False), (61.0, True)])
def test_a_job_that_has_waited_counts_one_band_better(waited: float, goes_first: bool) -> None:
    old, new = lane(account("ada"), Band.BATCH, waited=waited), lane(account("bob", vtime=1.0))
    assert (choose(old, new) is old) is goes_first


def test_ageing_never_ranks_above_the_first_band() -> None:
    old = lane(account("ada", vtime=1.0), Band.BATCH, waited=10_000.0)
    urgent = lane(account("bob"), Band.INTERACTIVE)
    assert choose(old, urgent) is urgent


def test_a_tenant_at_its_limit_is_skipped() -> None:
    full, other = account("ada", num_running=2, max_running=2), account("bob", vtime=9.0)
    waiting = lane(other)
    assert choose(lane(full), waiting) is waiting
    assert choose(lane(full)) is None


def test_lanes_of_models_that_the_worker_lacks_are_skipped() -> None:
    assert choose(lane(account("ada"), model="other")) is None


def test_ties_are_broken_by_tenant_and_then_by_place_in_its_queue() -> None:
    ada, bob = account("ada"), account("bob")
    late, early, other = lane(ada, seq=3), lane(ada, model="wan", seq=2), lane(bob, seq=1)
    assert choose(other, late, early) is early
    assert choose(other, late) is late


def test_a_started_job_is_charged_by_weight_and_counted_as_running() -> None:
    ada = TenantAccount(Tenant("ada", Plan(name="test", weight=4.0, max_running=2)), 1.0, 0)
    waiting = lane(ada)
    ada.charge(6.0)
    assert (ada.vtime, ada.num_running, choose(waiting)) == (2.5, 1, waiting)
    ada.charge(2.0)
    assert (ada.vtime, ada.num_running, choose(waiting)) == (3.0, 2, None)


class TestAffinity:
    """A job whose model is resident may overtake others within bounds."""

    def test_a_resident_model_overtakes_another(self) -> None:
        warm = lane(account("bob", vtime=4.0), model="wan")
        assert choose(lane(account("ada")), warm, resident=["wan"]) is warm

    @pytest.mark.parametrize(("load_seconds", "overtakes"), [(0.0, True), (0.3, False), (0.5, True)])
    def test_no_tenant_is_overtaken_by_more_than_ten_loads_that_it_saves(
        self, load_seconds: float, overtakes: bool
    ) -> None:
        """A load that was never measured may be long."""
        cold, warm = lane(account("ada")), lane(account("bob", vtime=4.0), model="wan")
        assert (choose(cold, warm, resident=["wan"], loads={"flux": load_seconds}) is warm) is overtakes

    @pytest.mark.parametrize(("head_for", "overtakes"), [(9.9, True), (10.1, False)])
    def test_no_head_is_passed_over_for_longer_than_ten_loads_take(
        self, head_for: float, overtakes: bool
    ) -> None:
        cold = lane(account("ada"), waited=head_for)
        warm = lane(account("bob", vtime=1.0), model="wan")
        assert (choose(cold, warm, resident=["wan"], loads={"flux": 1.0}) is warm) is overtakes

    def test_bounds_are_not_widened_by_loads_that_take_long(self) -> None:
        cold, warm = lane(account("ada")), lane(account("bob", vtime=6.0), model="wan")
        assert choose(cold, warm, resident=["wan"], loads={"flux": 1_000.0}) is cold

    def test_a_job_of_another_model_leaves_the_rest_of_a_claim_to_that_model(self) -> None:
        worker = Claimant(["flux", "wan"], ["wan"])
        assert worker.having("wan") is worker
        assert worker.having("flux") == Claimant(("flux",), ("flux",))
        nothing_resident = Claimant(["flux", "wan"])
        assert nothing_resident.having("flux") is nothing_resident

    def test_no_tenant_too_far_behind_is_overtaken(self) -> None:
        cold, warm = lane(account("ada")), lane(account("bob", vtime=6.0), model="wan")
        assert choose(cold, warm, resident=["wan"]) is cold

    def test_the_fairest_head_is_not_overtaken_once_it_has_waited_long_enough(self) -> None:
        cold = lane(account("ada"), head_for=31.0)
        assert choose(cold, lane(account("bob"), model="wan"), resident=["wan"]) is cold

    def test_no_head_is_overtaken_once_it_has_waited_long_enough(self) -> None:
        cold = lane(account("ada"))
        waiting = lane(account("bob", vtime=1.0), head_for=31.0)
        behind = lane(account("eve", vtime=2.0), model="wan")
        ahead = lane(account("abe", vtime=0.5), model="wan")
        assert choose(cold, waiting, behind, resident=["wan"]) is cold
        assert choose(cold, waiting, behind, ahead, resident=["wan"]) is ahead

    @pytest.mark.parametrize(("seq", "goes_first"), [(5, True), (6, False)])
    def test_a_job_overtakes_few_jobs_of_its_own_tenant(self, seq: int, goes_first: bool) -> None:
        ada = account("ada")
        cold, warm = lane(ada, seq=1), lane(ada, model="wan", seq=seq)
        assert (choose(cold, warm, resident=["wan"]) is warm) is goes_first

    def test_the_bounds_are_inclusive(self) -> None:
        cold, warm = lane(account("ada"), head_for=30.0), lane(account("bob", vtime=5.0), model="wan")
        assert choose(cold, warm, resident=["wan"]) is warm

    def test_places_in_another_tenants_queue_do_not_count(self) -> None:
        cold, warm = lane(account("ada"), seq=1), lane(account("bob"), model="wan", seq=900)
        assert choose(cold, warm, resident=["wan"]) is warm

    def test_a_job_overtakes_few_jobs_of_its_tenant_even_if_that_is_not_the_fairest(self) -> None:
        bob = account("bob", vtime=1.0)
        cold, first, warm = lane(account("ada")), lane(bob, seq=1), lane(bob, model="wan", seq=6)
        assert choose(cold, first, warm, resident=["wan"]) is cold

    def test_the_fairest_resident_model_is_served_first(self) -> None:
        later = lane(account("bob", vtime=3.0), model="wan")
        sooner = lane(account("eve", vtime=2.0), model="wan")
        assert choose(lane(account("ada")), later, sooner, resident=["wan"]) is sooner

    def test_a_resident_model_of_a_tenant_at_its_limit_is_skipped(self) -> None:
        cold, full = lane(account("ada")), account("bob", num_running=2, max_running=2)
        assert choose(cold, lane(full, model="wan"), resident=["wan"]) is cold

    def test_no_better_band_is_overtaken(self) -> None:
        cold = lane(account("ada", vtime=3.0), Band.INTERACTIVE)
        assert choose(cold, lane(account("bob"), model="wan"), resident=["wan"]) is cold


_LANES = st.lists(
    st.builds(
        lambda name, vtime, running, band, model, waited: lane(
            account(name, vtime, running, max_running=3), band, model, waited=waited
        ),
        st.sampled_from("abcdef"),
        st.floats(0, 80),
        st.integers(0, 4),
        st.sampled_from(Band),
        st.sampled_from(["flux", "wan"]),
        st.floats(0, 200),
    ),
    max_size=8,
)


@given(lanes=_LANES, resident=st.sampled_from([[], ["flux"], ["wan"]]))
def test_the_chosen_lane_may_start_and_overtakes_within_the_bound(
    lanes: list[Lane], resident: list[str]
) -> None:
    chosen = choose(*lanes, resident=resident)
    able = [rival for rival in lanes if rival.account.num_running < 3]
    if chosen is None:
        assert not able
        return
    assert chosen in able

    def rank(rival: Lane) -> int:
        return max(0, rival.band.rank - int((NOW - rival.head_at) // 60))

    first = [rival for rival in able if rank(rival) == min(map(rank, able))]
    assert chosen.vtime <= min(rival.vtime for rival in first) + CONFIG.affinity_seconds
    rivals = [rival for rival in able if rival.band.rank <= chosen.band.rank]
    assert chosen.vtime - min(rival.vtime for rival in rivals) <= CONFIG.affinity_seconds
    assert chosen.vtime - min(rival.vtime for rival in able) <= BAND_SECONDS + CONFIG.affinity_seconds


@given(lanes=_LANES, resident=st.sampled_from([[], ["flux"], ["wan"]]))
def test_a_model_that_is_not_resident_is_served_only_for_the_tenant_furthest_behind(
    lanes: list[Lane], resident: list[str]
) -> None:
    chosen = choose(*lanes, resident=resident)
    if chosen is not None and chosen.model not in resident:
        able = [rival for rival in lanes if rival.account.num_running < 3]
        rank = {
            id(rival): max(0, rival.band.rank - int((NOW - rival.head_at) // CONFIG.ageing_seconds))
            for rival in able
        }
        is_best = rank[id(chosen)] == min(rank.values())  # otherwise its band lets it go before better ranks
        peers = [
            rival
            for rival in able
            if rank[id(rival)] == rank[id(chosen)] and (is_best or rival.band.rank <= chosen.band.rank)
        ]
        assert chosen.account.vtime == min(peer.account.vtime for peer in peers)


@given(lanes=_LANES, models=st.sampled_from([["flux"], ["wan"], []]))
def test_lanes_of_models_that_are_not_served_change_nothing(lanes: list[Lane], models: list[str]) -> None:
    served = [rival for rival in lanes if rival.model in models]
    assert choose(*lanes, models=models, resident=["wan"]) is choose(*served, resident=["wan"])


@settings(max_examples=20)  # each is a run of 300 choices
@given(weights=st.lists(st.sampled_from([1.0, 2.0, 4.0]), min_size=2, max_size=4), data=st.data())
def test_over_time_each_tenant_gets_its_share(weights: list[float], data: st.DataObject) -> None:
    accounts = [
        TenantAccount(Tenant(str(i), Plan(name="test", weight=weight, max_running=10**9)), 0.0, 0)
        for i, weight in enumerate(weights)
    ]
    used = dict.fromkeys(range(len(weights)), 0.0)
    lanes = [lane(tenant_account) for tenant_account in accounts]
    longest = 3.0
    for _ in range(300):
        chosen = choose(*lanes)
        assert chosen is not None
        seconds = data.draw(st.sampled_from([0.5, 1.0, longest]))
        chosen.account.charge(seconds)
        used[int(chosen.account.tenant.id)] += seconds
    shares = [used[i] / weight for i, weight in enumerate(weights)]
    assert max(shares) - min(shares) <= longest / min(weights), "never further apart than one job"


def test_a_worker_of_quantized_weights_passes_exact_jobs_over() -> None:
    exact, other = lane(account("ada")), lane(account("bob", vtime=5.0))
    exact.is_exact = True
    assert choose_lane([exact, other], Claimant(("flux",), is_exact=True), NOW, CONFIG) is exact
    assert choose_lane([exact, other], Claimant(("flux",), is_exact=False), NOW, CONFIG) is other
    assert choose_lane([exact], Claimant(("flux",), is_exact=False), NOW, CONFIG) is None
