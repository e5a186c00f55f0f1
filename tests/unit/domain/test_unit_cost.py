"""Costs of 1,000 images follow from prices, rates and the useful share of the machines' time."""

from dataclasses import replace

import pytest

from diffuserve.domain.unit_cost import cost_of_thousand, measured_costs
from diffuserve.domain.workers.machines import MachineKind
from support.resources import make_usage


def test_a_machine_that_idles_half_of_its_time_draws_at_twice_the_price() -> None:
    assert cost_of_thousand(8.0, 2_500.0) == pytest.approx(3.2)
    assert cost_of_thousand(8.0, 2_500.0, 0.5) == pytest.approx(6.4)


def test_each_kind_of_machine_has_its_own_price_rate_and_share() -> None:
    on_demand, spot = measured_costs(make_usage())
    assert (on_demand.kind, spot.kind) == (MachineKind.ON_DEMAND, MachineKind.SPOT)
    assert (on_demand.images_per_hour, spot.images_per_hour) == (4.0, 16.0)
    assert (on_demand.price_per_hour, spot.price_per_hour) == pytest.approx((7.2, 3.6))
    assert (on_demand.useful_share, spot.useful_share) == (0.5, 0.5)
    assert (on_demand.per_thousand_busy, spot.per_thousand_busy) == pytest.approx((1_800.0, 225.0))
    assert (on_demand.per_thousand, spot.per_thousand) == pytest.approx((3_600.0, 450.0))
    assert spot.p95 == 12.5


def test_all_that_is_paid_for_is_what_the_images_cost() -> None:
    """1,000 images cost what the machines did for them, idle or not."""
    usage = make_usage()
    assert usage.fleet is not None
    paid = sum(cost.per_thousand * cost.num_images / 1_000.0 for cost in measured_costs(usage))
    assert paid == pytest.approx(sum(machines.cost for machines in usage.fleet.machines))


def test_a_worker_that_was_not_heard_of_since_its_work_is_never_useful_for_longer_than_it_was_there() -> None:
    usage = make_usage()
    assert usage.fleet is not None
    short = tuple(replace(machines, seconds=1.0) for machines in usage.fleet.machines)
    costs = measured_costs(replace(usage, fleet=replace(usage.fleet, machines=short)))
    assert [cost.useful_share for cost in costs] == [1.0, 1.0]


def test_tenants_are_told_no_costs_of_machines() -> None:
    assert measured_costs(replace(make_usage(), fleet=None)) == []
