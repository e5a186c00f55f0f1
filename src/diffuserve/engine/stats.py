"""Running totals of an engine."""

from dataclasses import asdict, dataclass


@dataclass
class EngineStats:
    """Totals since the engine started; written by the stepping thread, and read by any thread."""

    num_steps: int = 0
    num_request_steps: int = 0
    num_step_tokens: int = 0
    denoise_seconds: float = 0.0
    num_swapped_out: int = 0

    def count_step(self, num_requests: int, num_tokens: int, seconds: float) -> None:
        self.num_steps += 1
        self.num_request_steps += num_requests
        self.num_step_tokens += num_tokens
        self.denoise_seconds += seconds

    def since(self, before: "EngineStats") -> "EngineStats":
        """Return what was counted since an earlier copy."""
        earlier = asdict(before)
        return EngineStats(**{name: total - earlier[name] for name, total in asdict(self).items()})

    @property
    def mean_requests_per_step(self) -> float:
        """Mean number of requests in a step; 0 before the first."""
        return self.num_request_steps / self.num_steps if self.num_steps else 0.0
