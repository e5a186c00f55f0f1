"""A clock that tests advance by hand."""

from dataclasses import dataclass


@dataclass
class FakeClock:
    """Seconds since the epoch, for a `JobStore` in tests."""

    now: float = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
