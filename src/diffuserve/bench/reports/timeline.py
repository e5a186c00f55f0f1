"""How many requests waited and were drawn at each moment of a load, and shared a step on the server."""

from collections.abc import Sequence

from diffuserve.bench.outcomes import RequestOutcome
from diffuserve.bench.reports.plots import Points
from diffuserve.bench.watching import Watched

_NUM_MOMENTS = 200


def counted(outcomes: Sequence[RequestOutcome]) -> dict[str, Points]:
    """Return, over the seconds of a load, how many requests were under way and, where the server told its
    queue, how many of them waited there and how many it drew at once."""
    lines = {"under way": _counts([(each.sent, each.ended) for each in outcomes])}
    told = [each for each in outcomes if "queue" in each.phases]
    if told:
        starts = [each.sent + each.phases["queue"] for each in told]
        lines["in the queue"] = _counts(
            [(each.sent, start) for each, start in zip(told, starts, strict=True)]
        )
        lines["drawn at once"] = _counts(
            [(start, start + each.phases.get("run", 0.0)) for each, start in zip(told, starts, strict=True)]
        )
    return lines


def batches(watched: Watched) -> dict[str, Points]:
    """Return how many requests shared a step, as the server itself told it; nothing where it told nothing."""
    told = [(second, state.batch_size) for second, state in watched.moments if state.batch_size is not None]
    return {"in a step": [(second, size) for second, size in told if size is not None]} if told else {}


def _counts(spans: Sequence[tuple[float, float]]) -> Points:
    last = max((end for _, end in spans), default=0.0)
    moments = [last * number / _NUM_MOMENTS for number in range(_NUM_MOMENTS + 1)]
    changes = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    found, count, place = [], 0, 0
    for moment in moments:
        while place < len(changes) and changes[place][0] <= moment:
            count += changes[place][1]
            place += 1
        found.append((moment, float(count)))
    return found
