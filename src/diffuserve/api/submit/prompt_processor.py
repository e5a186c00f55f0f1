"""Processing of a prompt before its job is stored: moderation, then expansion if the client asks for it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from diffuserve.domain.errors import DiffuserveError, InvalidParams, PromptBlocked
from diffuserve.domain.jobs.prompt import PromptRecord
from diffuserve.domain.safety import PASSES, Action, FilterInfo, Verdict
from diffuserve.prompts.base import Expansion, ExpansionOutcome, PromptExpander
from diffuserve.safety.base import PromptFilter

NOT_OFFERED = (
    "this server has no language model that expands prompts; leave it out, or let the server's operator set "
    "DIFFUSERVE_EXPANDER_URL"
)


def _ignore(_verdict: Verdict, _seconds: float) -> None: ...


@dataclass(frozen=True)
class PromptProcessor:
    """Passes every prompt to `prompt_filter` and, on request, to `expander`; either may be absent.

    `on_verdict` receives each verdict and the seconds that it took.
    """

    prompt_filter: PromptFilter | None = None
    expander: PromptExpander | None = None
    on_verdict: Callable[[Verdict, float], None] = _ignore

    @property
    def filter_info(self) -> FilterInfo | None:
        """Name and version of the filter, `None` without one."""
        return self.prompt_filter.info if self.prompt_filter else None

    async def moderate(self, prompt: str, tenant_id: str = "") -> Verdict:
        """Return the filter's verdict. Raise `PromptBlocked` and `ModerationUnavailable`."""
        verdict = await self._verdict(prompt, tenant_id)
        if verdict.action is Action.BLOCK:
            raise PromptBlocked(verdict.category)
        return verdict

    async def moderate_all(self, prompts: Sequence[str], tenant_id: str = "") -> list[Verdict]:
        """Return the verdict on each prompt, blocked ones too. Raise `ModerationUnavailable`."""
        if self.prompt_filter is None:
            return [PASSES] * len(prompts)
        started_at = time.perf_counter()
        verdicts = await self.prompt_filter.check_all(prompts, tenant_id)
        for verdict in verdicts:
            self.on_verdict(verdict, (time.perf_counter() - started_at) / len(prompts))
        return verdicts

    def check_offered(self, expand: bool) -> None:
        """Raise `InvalidParams` if a client asks for an expansion and there is no expander."""
        if expand and self.expander is None:
            raise InvalidParams("expand_prompt", expand, NOT_OFFERED)

    async def expand(self, prompt: str, seed: int, tenant_id: str) -> tuple[Expansion, Verdict]:
        """Return the expanded prompt and the verdict on it.

        If the expansion fails, or the filter blocks it, return the original prompt and a verdict without
        findings.
        """
        assert self.expander is not None, "`check_offered` has refused the request"
        expansion = await self.expander.expand(prompt, seed)
        if expansion.outcome is not ExpansionOutcome.EXPANDED:
            return expansion, PASSES
        try:
            return expansion, await self.moderate(expansion.prompt, tenant_id)
        except DiffuserveError as error:
            return Expansion(
                prompt, ExpansionOutcome.REFUSED, f"the expanded prompt was rejected: {error}"
            ), PASSES

    def record(self, original: str, verdict: Verdict, expansion: Expansion | None = None) -> PromptRecord:
        """Build the record that is stored with the job."""
        return PromptRecord(
            original=original,
            verdict=verdict,
            filter=self.filter_info,
            expansion="" if expansion is None else expansion.outcome,
            reason="" if expansion is None else expansion.message,
        )

    async def close(self) -> None:
        """Close the filter and the expander."""
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
