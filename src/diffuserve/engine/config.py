"""Configuration of an engine."""

from dataclasses import dataclass
from pathlib import Path

from diffuserve.bench.slo import Slo, parse_slo
from diffuserve.domain.errors import InvalidParams
from diffuserve.engine.policy.step_order import StepOrder
from diffuserve.options import option

DEFAULT_MODEL = "tiny-flux"


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Configuration of an engine; every field but `cost_fit_path` is also an option of its worker.

    `None` means that the value is chosen from measurements and properties of this machine. `cost_fit_path` is
    a JSON file in which the fitted cost model is kept between runs.
    """

    token_budget: int | None = option(
        None,
        "Tokens that may share one denoising step; by default chosen from the cost model.",
        ge=1,
    )
    max_batch_size: int | None = option(
        None, "Requests that may share one denoising step; by default as many as fit its tokens.", ge=1
    )
    step_order: StepOrder = option(
        StepOrder.SHORTEST,
        "Who steps first among requests of one priority: the shortest, after those that already take four "
        "times as long as by themselves; or the first to arrive.",
    )
    max_wait_seconds: float = option(
        0.0,
        "Seconds, up to 10, that an idle engine waits at most for other requests before the first step of "
        "a request.",
        ge=0,
        le=10,
    )
    same_steps_only: bool = option(
        False,
        "Share a step only among requests with as many steps and as many of them done, as in a static batch.",
    )
    memory_budget_bytes: int | None = option(
        None,
        "Predicted memory in bytes that a step may take on each GPU; by default 90 % of what is free there, "
        "and half of what is free on a CPU.",
        ge=1,
    )
    adaptive: str | None = option(
        None,
        'Objective such as "p95<2s" for the seconds of requests in the engine, which then gives steps fewer '
        "tokens while that helps to keep it.",
    )
    ageing_steps: int = option(
        16, "Steps after which a request that was passed over rises by one priority.", ge=1
    )
    prompt_cache_bytes: int = option(
        256 * 1024 * 1024,
        "Bytes of conditioning, of recent prompts and input images, that are kept, 0 for none; at most an "
        "eighth of the memory budget, in which they count.",
        ge=0,
    )
    adapter_bytes: int = option(
        512 * 1024 * 1024,
        "Bytes of adapters that are kept in the device's memory: those of running requests, and the most "
        "recently used others.",
        ge=0,
    )
    encode_batch_size: int = option(16, "Prompts encoded together.", ge=1)
    num_threads: int | None = option(
        None,
        "CPU cores that the engine uses, 1 for each of several ranks, and without meaning on CUDA; by "
        "default torch's number of threads.",
        ge=1,
    )
    deterministic: bool = option(
        False, "Draw bit-equal images, alone or in any batch; slower, and on one CPU only."
    )
    cost_fit_path: Path | None = None

    def __post_init__(self) -> None:
        """Refuse an order that is none, which may be given by its name, or a bad objective: `ValueError`."""
        StepOrder(self.step_order)
        self.slo  # noqa: B018 (raises)

    @property
    def slo(self) -> Slo | None:
        """The objective to follow. Raise `InvalidParams`."""
        try:
            return None if self.adaptive is None else parse_slo(self.adaptive)
        except InvalidParams as error:
            raise InvalidParams("adaptive", self.adaptive, error.remedy) from error
