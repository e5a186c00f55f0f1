"""Prompts on their way into a job: judged, expanded if the client asks for it, and recorded."""

from dataclasses import dataclass, replace

from diffuserve.api.submit.prompt_processor import PromptProcessor
from diffuserve.domain.errors import PromptBlocked
from diffuserve.domain.jobs.job import NewJob
from diffuserve.domain.requests.params import JUDGED
from diffuserve.domain.safety import PASSES, Verdict
from diffuserve.jobs.security.audit import blocked_prompt
from diffuserve.jobs.store import JobStore
from diffuserve.prompts.base import Expansion


def judged_texts(new: NewJob) -> dict[str, str]:
    """Return the texts of a job that the filter judges, by the names of their fields."""
    return {name: str(new.input[name]) for name in JUDGED if new.input.get(name)}


@dataclass(frozen=True)
class PromptScreening:
    """Judges prompts by the server's filter; the audit log has an entry for each that is blocked."""

    prompts: PromptProcessor
    store: JobStore

    async def screened(self, new: NewJob, expand: bool) -> NewJob:
        """Return the job with the prompt that its model will read, and the record of the client's own prompt.

        Lyrics are judged too.

        Raise `PromptBlocked`, after adding an entry to the audit log, and `ModerationUnavailable`.
        """
        prompt, expansion = str(new.input["prompt"]), None
        verdict = PASSES
        for text in judged_texts(new).values():
            verdict = verdict.merge(await self._judge(new.tenant_id, text))
        if expand:
            expansion, expanded_verdict = await self.prompts.expand(
                prompt, int(new.input["seed"]), new.tenant_id
            )
            prompt, verdict = expansion.prompt, verdict.merge(expanded_verdict)
        new = replace(new, input={**new.input, "prompt": prompt})
        if new.fallback is not None:
            new = replace(new, fallback=replace(new.fallback, input={**new.fallback.input, "prompt": prompt}))
        return self.recorded(new, verdict, expansion)

    def recorded(self, new: NewJob, verdict: Verdict, expansion: Expansion | None = None) -> NewJob:
        """Return the job with the record of how its prompt was processed."""
        assert new.prompt is not None
        return replace(new, prompt=self.prompts.record(new.prompt.original, verdict, expansion))

    async def note_blocked(self, tenant_id: str, prompt: str, category: str) -> None:
        """Add an audit entry for a prompt that the filter blocks."""
        assert self.prompts.filter_info is not None
        await self.store.audit.note(blocked_prompt(tenant_id, prompt, category, self.prompts.filter_info))

    async def _judge(self, tenant_id: str, prompt: str) -> Verdict:
        try:
            return await self.prompts.moderate(prompt, tenant_id)
        except PromptBlocked as error:
            await self.note_blocked(tenant_id, prompt, error.category)
            raise
