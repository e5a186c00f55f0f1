"""A plot, as SVG, of what mixes of on-demand and spot workers cost, and of how long urgent jobs take."""

from collections.abc import Mapping, Sequence
from typing import Protocol

_WIDTH, _HEIGHT, _LEFT, _TOP, _BELOW = 680, 380, 50, 50, 70
_LARGEST = 1.6
_TARGETS = {"0.55": 0.55, "1.10": 1.10}


class Mixed(Protocol):
    """Outcome of a fleet, as far as it is drawn."""

    @property
    def on_demand(self) -> int: ...
    @property
    def spot(self) -> int: ...
    @property
    def is_placed(self) -> bool: ...
    @property
    def p95_seconds(self) -> Mapping[str, float]: ...
    def cost(self, prices: tuple[float, float]) -> float:
        """Return dollars for 1,000 images."""
        ...


def plotted(fleets: Sequence[Mixed], prices: Mapping[str, tuple[float, float]]) -> str:
    """Return lines over the mixes, each relative to the fleet on demand alone, which is the first."""
    base = fleets[0]
    mixes = list(dict.fromkeys((fleet.on_demand, fleet.spot) for fleet in fleets))
    p95 = base.p95_seconds["interactive"]
    placed = [fleet for fleet in fleets if fleet.is_placed or not fleet.spot or not fleet.on_demand]
    anywhere = [fleet for fleet in fleets if not fleet.is_placed or not fleet.spot]
    dollars = {
        f"cost of 1,000 images, {name}": [fleet.cost(pair) / base.cost(pair) for fleet in placed]
        for name, pair in prices.items()
    }
    lines = {
        **dollars,
        "p95 of interactive jobs, placed": [fleet.p95_seconds["interactive"] / p95 for fleet in placed],
        "p95 of interactive jobs, any worker": [fleet.p95_seconds["interactive"] / p95 for fleet in anywhere],
    }
    return "\n".join([*_frame(mixes), *_drawn(lines, len(mixes)), "</svg>"]) + "\n"


def _frame(mixes: Sequence[tuple[int, int]]) -> list[str]:
    bottom = _y(0.0)
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="20">Mixes that can do as much as ten machines on demand (1.0) or more</text>',
        f'<path d="M{_LEFT} {_TOP}V{bottom:.0f}H{_WIDTH - 20}" fill="none" stroke="black"/>',
        *(f'<text x="14" y="{_y(tick) + 4:.0f}">{tick:.1f}</text>' for tick in (0.0, 0.5, 1.0, 1.5)),
        *(
            f'<path d="M{_LEFT} {_y(value):.0f}H{_WIDTH - 20}" stroke="#999" stroke-dasharray="4 4"/>'
            f'<text x="{_WIDTH - 50}" y="{_y(value) - 4:.0f}" fill="#666">{name}</text>'
            for name, value in _TARGETS.items()
        ),
        *(
            f'<text x="{_x(place, len(mixes)) - 16:.0f}" y="{bottom + 20:.0f}">{on_demand} + {spot}</text>'
            for place, (on_demand, spot) in enumerate(mixes)
        ),
        f'<text x="{_LEFT}" y="{_HEIGHT - 14}">machines on demand + on spot</text>',
    ]


def _drawn(lines: Mapping[str, Sequence[float]], num_mixes: int) -> list[str]:
    colors = ("#0050c8", "#6aa5ff", "#b00020", "#e08a00")
    parts = []
    for number, ((name, values), color) in enumerate(zip(lines.items(), colors, strict=True)):
        points = " ".join(f"{_x(place, num_mixes):.0f},{_y(value):.0f}" for place, value in enumerate(values))
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>'
            f'<text x="{_LEFT + 20}" y="{_y(0.0) - 74 + 18 * number:.0f}" fill="{color}">{name}</text>'
        )
    return parts


def _x(place: int, num_mixes: int) -> float:
    return _LEFT + 30 + place * (_WIDTH - _LEFT - 110) / max(num_mixes - 1, 1)


def _y(value: float) -> float:
    return _HEIGHT - _BELOW - min(value, _LARGEST) / _LARGEST * (_HEIGHT - _BELOW - _TOP)
