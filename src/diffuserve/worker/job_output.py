"""The way of a job's images out of the engine, on the threads that write files."""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from PIL.Image import Image

from diffuserve.domain.errors import (
    DiffuserveError,
    LatentsUnusable,
    NumericalFailure,
    OutOfMemory,
    OutputBlocked,
    RequestAborted,
)
from diffuserve.domain.safety import Action, Verdict
from diffuserve.engine.outputs import GenerationResult, StepOutput
from diffuserve.models.frames import Frames
from diffuserve.worker.agent_link import AgentLink
from diffuserve.worker.handover import added_up
from diffuserve.worker.image_output import ImageOutput, allowed, passed
from diffuserve.worker.messages import (
    AddJob,
    FilterVerdict,
    JobFailed,
    JobFinished,
    PreviewReady,
    StepProgress,
)

# Another attempt would fail in the same way.
_FINAL_ERRORS = (ValueError, LatentsUnusable, NumericalFailure, OutOfMemory, OutputBlocked, RequestAborted)


@dataclass(frozen=True)
class EngineRequest:
    """A job inside the engine, the steps that it takes, and those after which it shows a preview.

    `earlier` are the seconds of its first phase, if another worker did that.
    """

    job: AddJob
    num_steps: int
    preview_steps: Sequence[int] = ()
    earlier: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class JobOutput:
    """Filters, writes and reports the images of requests."""

    link: AgentLink
    images: ImageOutput

    def preview(self, request: EngineRequest, output: StepOutput) -> None:
        """Report a preview, if the filter allows it."""
        attempt, preview = request.job.attempt, output.preview
        assert preview is not None
        try:
            verdict = self._judge(attempt, "preview", [preview])
        except Exception:  # the finished image meets the same filter, and that failure is reported
            return
        if verdict.action is Action.BLOCK:
            return
        self.link.send(
            PreviewReady(
                attempt=attempt,
                index=list(request.preview_steps).index(output.step),
                step=output.step,
                total=output.num_steps,
                png=_png(allowed(preview, verdict)),
            )
        )

    def finish(self, request: EngineRequest, result: GenerationResult) -> None:
        """Filter and write the images, and report the job finished or failed."""
        job, steps = request.job, request.num_steps
        verdicts: list[Verdict] = []
        try:
            self.link.send(StepProgress(attempt=job.attempt, phase="filter", step=steps, total=steps))
            verdicts += [self._judge(job.attempt, "image", frames) for frames in result.frames]
            shown = passed(result, verdicts)
            files = self.images.write(shown, Path(job.folder), job.output_format)
        except Exception as error:  # at the border of a job: it fails alone
            failure = job_failure(job.attempt, error)
            self.link.send(replace(failure, safety=self.images.record(verdicts)))
            return
        self.link.send(
            JobFinished(
                attempt=job.attempt,
                files=files,
                input=result.params.to_dict(),
                timings=added_up(asdict(result.timings), request.earlier),
                actual_seconds=result.timings.device_seconds,
                warnings=shown.warnings,
                safety=self.images.record(verdicts),
            )
        )

    def _judge(self, attempt: str, stage: str, frames: Frames) -> Verdict:
        """Return the filter's verdict, and report it to the agent, which counts it."""
        judged = self.images.judge(frames)
        if self.images.image_filter is not None:
            self.link.send(
                FilterVerdict(
                    attempt=attempt,
                    stage=stage,
                    action=judged.verdict.action,
                    category=judged.verdict.category,
                    seconds=judged.seconds,
                )
            )
        return judged.verdict


def job_failure(attempt: str, error: Exception) -> JobFailed:
    """Build the report of an error, retryable unless another attempt would fail in the same way."""
    code = error.code if isinstance(error, DiffuserveError) else "internal_error"
    message = str(error) if isinstance(error, DiffuserveError) else f"{type(error).__name__}: {error}"
    is_retryable = not isinstance(error, _FINAL_ERRORS)
    return JobFailed(attempt=attempt, code=code, message=message, retryable=is_retryable)


def preview_steps(num_steps: int, num_previews: int) -> list[int]:
    """Return evenly spaced steps for previews, never the last step: the image itself follows that."""
    wanted = (round(i * num_steps / (num_previews + 1)) for i in range(1, num_previews + 1))
    return sorted({step for step in wanted if 0 < step < num_steps})


def _png(image: Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode()
