"""The prompt filter of a server: long prompts, and those of batches, are judged in other processes."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from diffuserve.domain.safety import Verdict
from diffuserve.safety.base import TextClassifier
from diffuserve.safety.policies.policy import Policy
from diffuserve.safety.processes.judge_pool import JudgePool
from diffuserve.safety.prompt import PolicyFilter, in_parallel
from diffuserve.telemetry.log_config import LogConfig

MAX_INLINE_CHARACTERS = 200
"""A prompt of at most this length is judged at once, which takes less time than a call of another process."""


@runtime_checkable
class LocalClassifier(Protocol):
    """A classifier that computes its scores, and waits for nothing."""

    def score(self, prompt: str) -> dict[str, float]:
        """Return a score in 0…1 for each category."""
        ...


class PooledFilter:
    """A `PolicyFilter` whose computation is done by `num_processes` other processes.

    A classifier that only waits, for a remote server, stays in this process.
    """

    def __init__(
        self,
        policy: Policy,
        classifier: TextClassifier | None = None,
        *,
        is_open_when_down: bool = False,
        num_processes: int = 1,
        logs: LogConfig = LogConfig(),
    ) -> None:
        is_local = isinstance(classifier, LocalClassifier)
        self._filter = PolicyFilter(policy, classifier, is_open_when_down=is_open_when_down)
        self._waits = classifier is not None and not is_local
        self._pool = JudgePool(policy, classifier if is_local else None, num_processes, logs)
        self.info = self._filter.info

    async def check(self, prompt: str, tenant_id: str = "") -> Verdict:
        """Return the verdict by this tenant's policy. Raise `ModerationUnavailable` if none can be given."""
        if len(prompt) <= MAX_INLINE_CHARACTERS:
            return await self._filter.check(prompt, tenant_id)
        # A line of its own, so that it does not wait for a batch of the same tenant.
        [verdict] = await self._check([prompt], tenant_id, "single")
        return verdict

    async def check_all(self, prompts: Sequence[str], tenant_id: str = "") -> list[Verdict]:
        """Return the verdict on each prompt. Raise `ModerationUnavailable` if one has none."""
        return await self._check(prompts, tenant_id, "batch")

    async def close(self) -> None:
        """End the processes, and close the classifier."""
        await self._pool.close()
        await self._filter.close()

    async def _check(self, prompts: Sequence[str], tenant_id: str, line: str) -> list[Verdict]:
        verdicts = await self._pool.check(prompts, tenant_id, line)
        if not self._waits:
            return verdicts
        return await in_parallel(
            self._filter.add_scores(prompt, tenant_id, verdict)
            for prompt, verdict in zip(prompts, verdicts, strict=True)
        )
