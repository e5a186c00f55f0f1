"""Reports a sample of the denoising steps that traced jobs shared to the agent."""

from collections.abc import Callable, Sequence

from diffuserve.engine.outputs import StepOutput
from diffuserve.engine_process.agent_link import AgentLink
from diffuserve.protocol.messages import AddJob, StepTaken

# If all steps were reported, a job of 28 steps in batches of 32 would have 900 links.
_STEPS_PER_SPAN = 8


class TracedSteps:
    """Counts an engine's steps with traced jobs; `job_of` returns the job of a request."""

    def __init__(self, link: AgentLink, job_of: Callable[[str], AddJob]) -> None:
        self._link, self._job_of = link, job_of
        self._num_steps = 0

    def tell(self, outputs: Sequence[StepOutput], began_at: float, seconds: float) -> None:
        """Report the first of every few steps that included traced jobs."""
        jobs = [self._job_of(output.request_id) for output in outputs if _is_denoised(output)]
        if not any(job.is_traced for job in jobs):
            return
        if self._num_steps % _STEPS_PER_SPAN == 0:
            attempts = tuple(job.attempt for job in jobs)
            self._link.send(StepTaken(attempts=attempts, began_at=began_at, seconds=seconds))
        self._num_steps += 1


def _is_denoised(output: StepOutput) -> bool:
    """Return whether the output is that of a denoising step."""
    return not output.finished and output.step > 0 and not output.num_decoded
