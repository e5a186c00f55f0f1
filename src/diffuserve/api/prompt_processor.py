"""What happens to a prompt before a job is made of it: judged, then made longer where that is wished."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from diffuserve.domain.errors import DiffuserveError, PromptBlocked
from diffuserve.domain.prompt import PromptRecord
from diffuserve.domain.safety import PASSES, Action, FilterInfo, Verdict
from diffuserve.prompts.base import Expansion, ExpansionOutcome, PromptExpander
from diffuserve.safety.base import PromptFilter

NOT_OFFERED = "this server expands no prompts"


def _ignore(_verdict: Verdict, _seconds: float) -> None: ...


@dataclass(frozen=True)
class PromptProcessor:
    """`prompt_filter` sees every prompt, `expander` those whose job asks for it; either may be absent.

    `on_verdict` hears of each verdict and of the seconds that it took.
    """

    prompt_filter: PromptFilter | None = None
    expander: PromptExpander | None = None
    on_verdict: Callable[[Verdict, float], None] = _ignore

    @property
    def info(self) -> FilterInfo | None:
        return self.prompt_filter.info if self.prompt_filter else None

    async def judge(self, prompt: str, tenant_id: str = "") -> Verdict:
        """Raises `PromptBlocked` and `ModerationUnavailable`."""
        verdict = await self._verdict(prompt, tenant_id)
        if verdict.action is Action.BLOCK:
            raise PromptBlocked(verdict.category)
        return verdict

    async def expand(self, prompt: str, seed: int, tenant_id: str) -> tuple[Expansion, Verdict]:
        """The longer prompt where there is one and it passes too, with what was found in it.

        Otherwise the original, in which nothing more was found.
        """
        if self.expander is None:
            return Expansion(prompt, ExpansionOutcome.ERROR, NOT_OFFERED), PASSES
        expansion = await self.expander.expand(prompt, seed)
        if expansion.outcome is not ExpansionOutcome.EXPANDED:
            return expansion, PASSES
        try:
            return expansion, await self.judge(expansion.prompt, tenant_id)
        except DiffuserveError as error:
            return Expansion(prompt, ExpansionOutcome.REFUSED, f"of the longer prompt: {error}"), PASSES

    def record(self, original: str, verdict: Verdict, expansion: Expansion | None = None) -> PromptRecord:
        """What is kept of it beside the job."""
        return PromptRecord(
            original=original,
            verdict=verdict,
            filter=self.info,
            expansion="" if expansion is None else expansion.outcome,
            reason="" if expansion is None else expansion.message,
        )

    async def close(self) -> None:
        if self.prompt_filter is not None:
            await self.prompt_filter.close()
        if self.expander is not None:
            await self.expander.close()

    async def _verdict(self, prompt: str, tenant_id: str) -> Verdict:
        if self.prompt_filter is None:
            return PASSES
        started_at = time.perf_counter()
        verdict = await self.prompt_filter.check(prompt, tenant_id)
        self.on_verdict(verdict, time.perf_counter() - started_at)
        return verdict
