"""What is played: arrivals, workloads, objectives, the search for the knee, and what is refused."""

import statistics
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.bench.arrivals import Ramp, arrivals, until
from diffuserve.bench.figures import jain
from diffuserve.bench.given import Given, plan_of, servers_of
from diffuserve.bench.slo import Slo, parse_slo
from diffuserve.bench.sweep import Probe, knee, next_rate
from diffuserve.bench.targets import Address
from diffuserve.bench.workloads import load_workload, presets
from diffuserve.domain.errors import InvalidParams

GIVEN = Given(
    servers=("http://127.0.0.1:8000",),
    model=None,
    workload="chat-app",
    input_file=None,
    fixed_schedule=False,
    request_rate=None,
    request_rate_end=None,
    burstiness=1.0,
    concurrency=None,
    request_count=None,
    benchmark_duration=None,
    warmup_request_count=0,
    slo=None,
    sweep=False,
    rounds=1,
    price_per_hour=None,
    api_key=None,
    keys_file=None,
    base_side=None,
    template=None,
    request_timeout=60.0,
    random_seed=0,
)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_their_mean_and_their_burstiness(burstiness: float) -> None:
    times = list(islice(arrivals(Ramp.steady(5.0), burstiness, 3), 20_000))
    gaps = [later - earlier for earlier, later in pairwise([0.0, *times])]
    assert statistics.fmean(gaps) == pytest.approx(0.2, rel=0.05)
    # The squared coefficient of variation of a gamma distribution is one over its shape.
    assert statistics.pvariance(gaps) / 0.2**2 == pytest.approx(1 / burstiness, rel=0.1)


@given(first=st.floats(0.1, 50), last=st.floats(0.1, 50), seconds=st.floats(1, 500))
def test_a_ramp_has_as_many_requests_as_its_area(first: float, last: float, seconds: float) -> None:
    times = list(until(seconds, arrivals(Ramp(first, last, seconds), None, 0)))
    assert abs(len(times) - (first + last) / 2 * seconds) <= 1.001
    assert times == sorted(times)


@given(limit=st.floats(0.05, 300), first=st.floats(0.5, 8))
def test_the_knee_is_found(limit: float, first: float) -> None:
    probes: list[Probe] = []
    while (rate := next_rate(probes, first, 0.05)) is not None:
        probes.append(Probe(rate, rate <= limit))
    found = knee(probes)
    assert len(probes) <= 24
    assert found is not None
    assert found <= limit <= found * 1.051


def test_a_preset_makes_the_same_requests_for_a_seed() -> None:
    for name in presets():
        workload = load_workload(name)
        first, again = (list(islice(workload.requests(7, 512), 50)) for _ in range(2))
        assert first == again
        assert all(each.width and each.width % 16 == 0 for each in first)
    assert first != list(islice(workload.requests(8, 512), 50))


def test_sizes_follow_the_model() -> None:
    (part, *_) = [part for part in load_workload("studio").mix if part.label == "draft"]
    assert part.size(1024) == (688, 384)  # a quarter of its pixels, 16:9
    assert part.size(128) == (80, 48)


@pytest.mark.parametrize(
    ("text", "slo"),
    [
        ("p95<2s", Slo(0.95, 2.0)),
        ("p99.9 < 800ms", Slo(0.999, 0.8)),
        ("p50<=1m", Slo(0.5, 60.0)),
        ("request_latency:2500", Slo(0.5, 2.5)),
    ],
)
def test_objectives_are_read(text: str, slo: Slo) -> None:
    found = parse_slo(text)
    assert (found.share, found.seconds) == pytest.approx((slo.share, slo.seconds))


@pytest.mark.parametrize("text", ["2s", "p0<1s", "p95<0s", "p100<1s", "p95>2s", ""])
def test_other_objectives_are_refused(text: str) -> None:
    with pytest.raises(InvalidParams, match="write p95<2s"):
        parse_slo(text)


def test_fairness_is_jains_index() -> None:
    assert jain([1, 1, 1, 1]) == 1.0
    assert jain([1, 0, 0, 0]) == 0.25


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"request_rate": 2.0, "concurrency": 4}, "concurrency"),
        ({"sweep": True}, "sweep"),
        ({"sweep": True, "slo": "p95<2s", "rounds": 3}, "rounds"),
        ({"request_rate_end": 5.0}, "request_rate_end"),
        ({"benchmark_duration": 5.0}, "benchmark_duration"),
        ({"fixed_schedule": True}, "fixed_schedule"),
        ({"request_rate": 0.0}, "request_rate"),
        ({"workload": "nothing"}, "workload"),
        ({"input_file": Path("nothing.jsonl")}, "input_file"),
        ({"slo": "fast"}, "slo"),
    ],
)
def test_what_makes_no_load_is_refused(changes: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidParams) as caught:
        plan_of(replace(GIVEN, **changes), 512)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_keys_go_to_their_own_servers(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("servers: {http://b: secret}\ntenants: {alice: hers}")
    given = replace(GIVEN, servers=("http://a", "openai=http://b", "openai=http://c"), api_key="ours")
    assert [each.key for each in servers_of(given)] == ["ours", None, None]
    (ours, theirs, none) = servers_of(replace(given, keys_file=keys))
    assert (ours.key, theirs.key, none.key) == ("ours", "secret", None)
    assert ours.tenant_keys == {"alice": "hers"}
    keys.write_text("secret")
    with pytest.raises(InvalidParams) as caught:
        servers_of(replace(given, keys_file=keys))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("text", ["127.0.0.1:8000", "nothing=http://a", "ftp://a"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidParams):
        Address.parse(text)


def test_a_line_of_a_trace_says_what_is_sent_and_when(tmp_path: Path) -> None:
    trace = tmp_path / "day.jsonl"
    lines = [
        '{"text": "a fox", "timestamp": 1000}',
        '{"prompt": "a cat", "timestamp": 1500, "extra": {"size": "64x32", "seed": 7}}',
    ]
    trace.write_text("\n".join(lines))
    plan = plan_of(replace(GIVEN, input_file=trace, fixed_schedule=True), 512)
    fox, cat = plan.requests(1)
    assert plan.dues == [0.0, 0.5]
    assert (fox.prompt, cat.width, cat.height, cat.fields) == ("a fox", 64, 32, {"seed": 7})
    trace.write_text('{"prompt": "a fox", "widht": 64}')
    with pytest.raises(InvalidParams, match="line 1: widht"):
        plan_of(replace(GIVEN, input_file=trace), 512)
