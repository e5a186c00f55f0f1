"""The frame of a plot, as SVG: its size, its title and its axes."""

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, LEFT, TOP, BELOW = 640, 60, 40, 60


@dataclass(frozen=True)
class PlotFrame:
    """A frame of so many pixels of height; places in it are shares, 0 to 1, of its axes."""

    height: int

    def opened(self, title: str, below: Sequence[str], beside: Sequence[str], left: int) -> list[str]:
        """Return the beginning of the plot. Labels are evenly spaced; `left` is how far they stand out."""
        bottom = self.y(0.0)
        return [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{self.height}" '
            'font-family="sans-serif" font-size="13">',
            f'<rect width="{WIDTH}" height="{self.height}" fill="white"/>',
            f'<text x="{LEFT}" y="20">{title}</text>',
            f'<path d="M{LEFT} {TOP}V{bottom:.0f}H{WIDTH - 20}" fill="none" stroke="black"/>',
            *(
                f'<text x="{left}" y="{self.y(share) + 4:.0f}">{label}</text>'
                for share, label in zip(ticks(len(beside) - 1), beside, strict=True)
            ),
            *(
                f'<text x="{self.x(share) - left:.0f}" y="{bottom + 20:.0f}">{label}</text>'
                for share, label in zip(ticks(len(below) - 1), below, strict=True)
            ),
        ]

    def x(self, share: float) -> float:
        return LEFT + share * (WIDTH - LEFT - 40)

    def y(self, share: float) -> float:
        return self.height - BELOW - share * (self.height - BELOW - TOP)


def ticks(count: int, most: float = 1.0) -> list[float]:
    """Return values from 0 to `most`, evenly spaced."""
    return [number / count * most for number in range(count + 1)]
