"""A claim of the field, and what is found of it here."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

Way = Literal["measured", "simulated", "computed"]
TIMES = "×"
_TOLERANCE = 1.15


@dataclass(frozen=True)
class Claim:
    """What is said: a figure between `low` and `high`, or only that something is so."""

    said: str
    low: float | None = None
    high: float | None = None

    def verdict(self, figure: float) -> str:
        """Return how a figure compares with what is said, within a seventh."""
        if self.low is None or self.high is None:
            return ""
        if figure > self.high * _TOLERANCE:
            return "more"
        return "less" if figure * _TOLERANCE < self.low else "as said"


CLAIMS = {
    "loading": Claim("To load a model for each request takes 10–15 times as long as to keep it", 10, 15),
    "cold": Claim("Cold starts are 4.2 times as fast from a snapshot, 6.7 with the GPU's memory", 4.2, 6.7),
    "ten": Claim("A batch of 10 takes 1.37 times as long as one image", 1.37, 1.37),
    "waiting": Claim("A window of 500 ms for a batch costs each request that long (1×)", 1, 1),
    "bursts": Claim("Containers that draw one image at a time are over-provisioned for bursts"),
    "continuous": Claim("Continuous batching gives 2–4 times the throughput of static batches", 2, 4),
    "steps": Claim("Models of 4 steps are 10 times as fast as those of 28 or 50", 10, 10),
    "offload": Claim("With weights offloaded an image takes 3–5 times as long", 3, 5),
    "bits": Claim("8 or 4 bits halve the memory (2×)", 2, 2),
    "workers": Claim("Throughput grows linearly with workers (2× with two)", 2, 2),
    "minute": Claim("A GPU draws 20–30 images a minute", 20, 30),
}
"""Each claim by its name, in the order of the document."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A figure for a claim; `low` and `high` are the extremes of `rounds`. `compared` says of what."""

    claim: str
    way: Way
    compared: str
    figure: float
    low: float | None = None
    high: float | None = None
    rounds: int = 0
    unit: str = TIMES

    @property
    def said(self) -> str:
        """Return what is said."""
        return CLAIMS[self.claim].said

    @property
    def shown(self) -> str:
        """Return the figure with its unit."""
        return f"{self.figure:.3g}{self.unit}"

    @property
    def spread(self) -> str:
        """Return the extremes and the number of rounds, if there were any."""
        if self.low is None or self.high is None:
            return ""
        return f"{self.low:.3g}–{self.high:.3g} ({self.rounds})"

    @property
    def verdict(self) -> str:
        """Return whether the figure is as said, more or less."""
        return CLAIMS[self.claim].verdict(self.figure)


def kept(finding: Finding) -> dict[str, object]:
    """Return what a result file has of a finding, in words too."""
    told = {name: getattr(finding, name) for name in ("said", "shown", "spread", "verdict")}
    return {**asdict(finding), **told}


def ratio(claim: str, compared: str, slow: Sequence[float], fast: Sequence[float]) -> Finding:
    """Return the ratio of medians of rounds in turn, with the extremes of single rounds."""
    singles = [theirs / ours for theirs, ours in zip(slow, fast, strict=True)]
    return Finding(
        claim=claim,
        way="measured",
        compared=compared,
        figure=statistics.median(slow) / statistics.median(fast),
        low=min(singles),
        high=max(singles),
        rounds=len(singles),
    )
