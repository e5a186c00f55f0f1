"""How an engine is set up."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """`None` means "chosen from what was measured or found on this machine".

    `token_budget`: tokens that may share one denoising step (default: the cost model's knee).
    `memory_budget_bytes`: predicted memory that a step may take (default: 90 % of what is free on a
    GPU, half of what is free on a CPU). `ageing_steps`: a request that was passed over this many
    steps rises one priority. `deterministic`: images equal to the last bit alone or in any batch,
    for up to half more time. `cost_fit_path`: where the fitted cost model is kept between runs.
    """

    token_budget: int | None = None
    memory_budget_bytes: int | None = None
    ageing_steps: int = 16
    prompt_cache_size: int = 256
    encode_batch_size: int = 16
    num_threads: int | None = None
    deterministic: bool = False
    cost_fit_path: Path | None = None
