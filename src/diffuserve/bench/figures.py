"""Figures of a load, from the outcomes of its requests: pure functions, and aiperf's names."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from diffuserve.bench.outcomes import RequestOutcome
from diffuserve.bench.slo import Slo

PERCENTS = (1, 5, 10, 25, 50, 75, 90, 95, 99)


@dataclass(frozen=True)
class Spread:
    """Values of one kind, in seconds: their mean, extremes, deviation and percentiles."""

    count: int
    avg: float
    min: float
    max: float
    std: float
    percentiles: Mapping[int, float]

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """Return the spread; None of nothing."""
        if not values:
            return None
        ranked = sorted(values)
        return cls(
            count=len(ranked),
            avg=statistics.fmean(ranked),
            min=ranked[0],
            max=ranked[-1],
            std=statistics.pstdev(ranked),
            percentiles=_percentiles(ranked),
        )


def _percentiles(ranked: Sequence[float]) -> dict[int, float]:
    """Return the percentiles of values, between two by their distance (as NumPy's `linear`)."""
    values = ranked if len(ranked) > 1 else [*ranked, *ranked]  # the library refuses a single one
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {percent: cuts[percent - 1] for percent in PERCENTS}


@dataclass(frozen=True, kw_only=True)
class TenantFigures:
    """One tenant's share: what it asked for and got, and how long it waited."""

    num_asked: int
    num_served: int
    latency: Spread | None


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What a load measured. Rates are a second; shares are in 0…1."""

    num_requests: int
    num_failed: int
    seconds: float
    latency: Spread | None
    request_throughput: float
    output_throughput: float
    phases: Mapping[str, Spread] = field(default_factory=dict)
    classes: Mapping[str, Spread] = field(default_factory=dict)
    tenants: Mapping[str, TenantFigures] = field(default_factory=dict)
    fairness: float | None = None
    errors: Mapping[str, int] = field(default_factory=dict)
    slo: Slo | None = None
    goodput: float | None = None
    good_share: float | None = None
    is_kept: bool | None = None
    send_delay: Spread | None = None
    cost_per_1000: float | None = None


def figures_of(
    outcomes: Sequence[RequestOutcome],
    seconds: float,
    *,
    slo: Slo | None = None,
    price_per_hour: float | None = None,
) -> Figures:
    """Return the figures of a load of `seconds`; a part of the mix may have an objective of its own."""
    served = [each for each in outcomes if each.error is None]
    good = sum(_is_good(each, slo) for each in outcomes)
    judged = slo is not None or any(each.asked.slo for each in outcomes)
    num_outputs = sum(each.num_outputs for each in outcomes)
    rate = num_outputs / seconds if seconds else 0.0
    tenants = _by_tenant(outcomes)
    return Figures(
        num_requests=len(outcomes),
        num_failed=len(outcomes) - len(served),
        seconds=seconds,
        latency=Spread.of(_latencies(outcomes)),
        request_throughput=len(served) / seconds if seconds else 0.0,
        output_throughput=rate,
        phases=_by_phase(served),
        classes=_by_class(outcomes),
        tenants=tenants,
        fairness=jain([each.num_served / each.num_asked for each in tenants.values()]) if tenants else None,
        errors=dict(Counter(str(each.error) for each in outcomes if each.error).most_common()),
        slo=slo,
        goodput=good / seconds if judged and seconds else None,
        good_share=good / len(outcomes) if judged and outcomes else None,
        is_kept=slo.is_kept([each.latency for each in outcomes]) if slo else None,
        send_delay=Spread.of([each.sent - each.due for each in outcomes]),
        cost_per_1000=price_per_hour / 3600 / rate * 1000 if price_per_hour and rate else None,
    )


def jain(shares: Sequence[float]) -> float:
    """Return Jain's index of fairness: 1 if all are equal, 1/n if one has all (Jain et al., 1984)."""
    squares = sum(share**2 for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def _is_good(outcome: RequestOutcome, slo: Slo | None) -> bool:
    objective = outcome.asked.slo or slo
    return objective is not None and objective.is_good(outcome.latency)


def _latencies(outcomes: Sequence[RequestOutcome]) -> list[float]:
    return [each.latency for each in outcomes if each.latency is not None]


def _by_phase(served: Sequence[RequestOutcome]) -> dict[str, Spread]:
    names = dict.fromkeys(name for each in served for name in each.phases)
    spreads = {
        name: Spread.of([each.phases[name] for each in served if name in each.phases]) for name in names
    }
    return {name: spread for name, spread in spreads.items() if spread}


def _by_class(outcomes: Sequence[RequestOutcome]) -> dict[str, Spread]:
    labels = dict.fromkeys(each.asked.label for each in outcomes)
    if len(labels) < 2:
        return {}
    spreads = {
        label: Spread.of(_latencies([each for each in outcomes if each.asked.label == label]))
        for label in labels
    }
    return {label: spread for label, spread in spreads.items() if spread}


def _by_tenant(outcomes: Sequence[RequestOutcome]) -> dict[str, TenantFigures]:
    names = dict.fromkeys(each.asked.tenant for each in outcomes if each.asked.tenant)
    found = {name: [each for each in outcomes if each.asked.tenant == name] for name in names}
    return {
        name: TenantFigures(
            num_asked=len(own),
            num_served=sum(each.error is None for each in own),
            latency=Spread.of(_latencies(own)),
        )
        for name, own in found.items()
    }
