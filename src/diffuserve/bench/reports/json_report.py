"""Results as JSON, by aiperf's names where it has them; times there are in milliseconds."""

from collections.abc import Mapping, Sequence
from typing import Any

from diffuserve.bench.comparison import Comparison, comparisons_of
from diffuserve.bench.figures import Figures, Spread
from diffuserve.bench.outcomes import RequestOutcome
from diffuserve.bench.own_load import warning_of
from diffuserve.bench.running import BenchRun, Measured
from diffuserve.bench.watching import Watched

_MS = "ms"


def report_of(run: BenchRun, conditions: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report; `given` is what was asked for on the command line."""
    return {
        "conditions": dict(conditions),
        "input_config": dict(given),
        "was_cancelled": run.is_interrupted,
        "results": [result_of(measured) for measured in run.measured],
        "comparisons": [_comparison(each) for each in comparisons_of(run)],
        "knees": {
            str(address): run.knee(address)
            for address in dict.fromkeys(each.address for each in run.measured if run.is_sweep)
        },
    }


def result_of(measured: Measured) -> dict[str, Any]:
    """Return one load's figures."""
    figures = measured.figures
    found = {
        "target": str(measured.address),
        "request_rate": measured.rate,
        "round": measured.round_number,
        "was_cancelled": measured.is_interrupted,
        "request_count": _value(figures.num_requests, "requests"),
        "error_request_count": _value(figures.num_failed, "requests"),
        "benchmark_duration": _value(figures.seconds, "sec"),
        "request_latency": _spread(figures.latency),
        "request_throughput": _value(figures.request_throughput, "requests/sec"),
        "output_throughput": _value(figures.output_throughput, "outputs/sec"),
        "request_error_rate": _value(_share(figures), "ratio"),
        "error_summary": [{"error": name, "count": count} for name, count in figures.errors.items()],
        "send_delay": _spread(figures.send_delay),
        "phases": {name: _spread(spread) for name, spread in figures.phases.items()},
        "classes": {name: _spread(spread) for name, spread in figures.classes.items()},
        "tenants": {
            name: {
                "asked": each.num_asked,
                "served": each.num_served,
                "request_latency": _spread(each.latency),
            }
            for name, each in figures.tenants.items()
        },
        "fairness": figures.fairness,
        "cost_per_1000_outputs": figures.cost_per_1000,
        "server": _server(measured.watched),
        "client": {
            "cores": measured.own.cores,
            "load_before": measured.own.machine.load_before,
            "load_after": measured.own.machine.load_after,
            "other_cores": measured.own.machine.other_cores,
            "busy": measured.own.machine.is_busy,
            "warning": warning_of(measured.own, figures.send_delay, figures.latency),
        },
    }
    if figures.goodput is not None:
        found |= {
            "goodput": _value(figures.goodput, "requests/sec"),
            "good_request_fraction": _value(figures.good_share, "ratio"),
        }
    if figures.slo is not None:
        found["slo"] = {"objective": str(figures.slo), "is_kept": figures.is_kept}
    return found


def records_of(measured: Measured) -> Sequence[dict[str, Any]]:
    """Return a record for each request, in the order of their due times."""
    ranked = sorted(measured.played.outcomes, key=lambda each: each.due)
    return [_record(each, measured) for each in ranked]


def _record(outcome: RequestOutcome, measured: Measured) -> dict[str, Any]:
    began = measured.played.began_ns

    def at(seconds: float) -> int:
        return began + int(seconds * 1e9)

    return {
        "target": str(measured.address),
        "round": measured.round_number,
        "credit_issued_ns": at(outcome.due),
        "request_start_ns": at(outcome.sent),
        "request_end_ns": at(outcome.ended),
        "label": outcome.asked.label,
        "tenant": outcome.asked.tenant,
        "request_latency": None if outcome.latency is None else outcome.latency * 1000,
        "phases": dict(outcome.phases),
        "error": str(outcome.error) if outcome.error else None,
    }


def _server(watched: Watched) -> dict[str, Any]:
    """Return what the server says of itself; a moment's second counts from the beginning of the load."""
    if watched.unknown:
        return {"unknown": watched.unknown}
    moments = [{"second": round(second, 1), **vars(state)} for second, state in watched.moments]
    return {"mean_batch_size": watched.mean_batch_size, "moments": moments}


def _comparison(found: Comparison) -> dict[str, Any]:
    return {
        "target": str(found.address),
        "beside": str(found.beside),
        "rounds": found.num_rounds,
        "ratios": {name: vars(ratio) for name, ratio in found.ratios.items()},
    }


def _share(figures: Figures) -> float:
    return figures.num_failed / figures.num_requests if figures.num_requests else 0.0


def _value(value: float | None, unit: str) -> dict[str, Any]:
    return {"unit": unit, "avg": value}


def _spread(spread: Spread | None) -> dict[str, Any] | None:
    if spread is None:
        return None
    return {
        "unit": _MS,
        "avg": spread.avg * 1000,
        **{f"p{percent}": value * 1000 for percent, value in spread.percentiles.items()},
        "min": spread.min * 1000,
        "max": spread.max * 1000,
        "std": spread.std * 1000,
        "count": spread.count,
    }
