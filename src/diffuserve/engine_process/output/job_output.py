"""Output of jobs: images and clips are filtered, written and reported on the threads that write files."""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL.Image import Image

from diffuserve.domain.errors import (
    DiffuserveError,
    LatentsUnusable,
    NumericalFailure,
    OutOfMemory,
    OutputBlocked,
    RequestAborted,
)
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.safety import Action, Verdict
from diffuserve.domain.workers.worker import LeaseEnd
from diffuserve.engine.outputs import FrameChunk, GenerationResult, StepOutput
from diffuserve.engine_process.agent_link import AgentLink
from diffuserve.engine_process.output.clip_screen import Judgement
from diffuserve.engine_process.output.handover import added_up
from diffuserve.engine_process.output.image_output import ImageOutput, allowed, blur_warnings, passed, writing
from diffuserve.engine_process.output.job_checkpoints import CheckpointTimer
from diffuserve.media.video_file import VIDEO_FORMATS
from diffuserve.models.frames import Frames
from diffuserve.protocol.messages import (
    AddJob,
    FilterVerdict,
    FinishedFile,
    JobFailed,
    JobFinished,
    LiveDropped,
    LivePart,
    PreviewReady,
    StepProgress,
)

if TYPE_CHECKING:
    from diffuserve.engine_process.output.video_output import VideoOutput

# Another attempt would fail in the same way.
_FINAL_ERRORS = (ValueError, LatentsUnusable, NumericalFailure, OutOfMemory, OutputBlocked, RequestAborted)


@dataclass(frozen=True)
class EngineRequest:
    """A job inside the engine, the steps that it takes, and those after which it shows a preview.

    `earlier` are the seconds of its first phase, if another worker did that. `clips` writes its frames if it
    makes clips, and `timer` says when its next checkpoint is due.
    """

    job: AddJob
    num_steps: int
    timer: CheckpointTimer
    preview_steps: Sequence[int] = ()
    earlier: Mapping[str, float] = field(default_factory=dict)
    clips: "VideoOutput | None" = None


@dataclass(frozen=True)
class JobOutput:
    """Filters, writes and reports the images and clips of requests."""

    link: AgentLink
    images: ImageOutput

    def show_previews(self, request: EngineRequest, output: StepOutput) -> None:
        """Report the previews of a step, those that the filter allows."""
        for image, preview in enumerate(output.previews):
            self._show_preview(request, output, image, preview)

    def _show_preview(self, request: EngineRequest, output: StepOutput, image: int, preview: Image) -> None:
        attempt = request.job.attempt
        try:
            verdict = self._judge(attempt, "preview", _cells_of(preview, request.clips)).verdict
        except Exception:  # the finished image meets the same filter, and that failure is reported
            return
        if verdict.action is Action.BLOCK:
            return
        self.link.send(
            PreviewReady(
                attempt=attempt,
                image=image,
                index=list(request.preview_steps).index(output.step),
                step=output.step,
                total=output.num_steps,
                png=_png(allowed(preview, verdict)),
            )
        )

    def check_sounds_leave(self, job: AddJob) -> None:
        """Raise `OutputBlocked` before any work if no sound may leave."""
        from diffuserve.engine_process.output.sound_output import check_sounds_leave  # it loads PyAV

        check_sounds_leave(job.attempt, self.images)

    def clips_of(self, request_id: str, job: AddJob, params: GenerationParams) -> "VideoOutput | None":
        """Return the writer of a request's clips; `None` if it makes images."""
        if job.until == LeaseEnd.LATENTS or not is_clip(params, job.output_format):
            return None
        from diffuserve.engine_process.output.video_output import LiveListener, VideoOutput  # they load PyAV

        live = LiveListener(partial(self._show_part, job.attempt), partial(self._drop_live, job.attempt))
        return VideoOutput(self.images, request_id, job, params, live if job.live else None)

    def add_frames(self, job: AddJob, clips: "VideoOutput", chunk: FrameChunk) -> bool:
        """Filter and write frames of a clip, unless it failed before; return whether it continues."""
        if clips.failure is not None:
            return False
        try:
            clips.add(chunk)
        except Exception as error:  # any error fails only this job, once the engine has dropped it
            clips.failure = error
            clips.abandon()
        if chunk.sound is not None and clips.of_sounds:
            self._report_judgement(job.attempt, "sound", clips.of_sounds[-1])
        if (chunk.is_last and clips.failure is None) or isinstance(clips.failure, OutputBlocked):
            self._report_judgement(job.attempt, "video", clips.take_judgement())
        return clips.failure is None

    def fail_clips(self, job: AddJob, clips: "VideoOutput", error: Exception, seconds: float) -> None:
        """Report that a request failed, for its own reason if it has one, and remove what was written."""
        clips.abandon()
        failure = job_failure(job.attempt, clips.failure or error, seconds)
        self.link.send(replace(failure, safety=self._record_of(clips)))

    def finish(self, request: EngineRequest, result: GenerationResult) -> None:
        """Filter and write the remaining output, and report the job finished or failed."""
        if request.clips is not None:
            self._finish_clips(request, request.clips, result)
        elif result.sounds and not result.frames:
            self._finish_sounds(request, result)
        else:
            self._finish_images(request, result)

    def _finish_clips(self, request: EngineRequest, clips: "VideoOutput", result: GenerationResult) -> None:
        job = request.job
        for index, media in enumerate(result.media):  # what was not streamed
            chunk = FrameChunk(index, 0, media.frames, is_last=True, sound=media.sound)
            self.add_frames(job, clips, chunk)
        try:
            files = () if clips.failure else clips.finish()
        except Exception as error:  # any error of a job fails only that job
            clips.failure = error
        if clips.failure is not None:
            self.fail_clips(job, clips, clips.failure, result.timings.device_seconds)
            return
        times = {
            "filter_seconds": sum(judged.seconds for judged in (*clips.judgements, *clips.of_sounds)),
            "video_encode_seconds": clips.encode_seconds,
        }
        warnings = (*result.warnings, *clips.warnings, *blur_warnings(clips.verdicts, "clip"))
        self._report_finished(request, result, files, warnings, self._record_of(clips), times)

    def _record_of(self, clips: "VideoOutput") -> dict[str, Any]:
        return self.images.record(clips.verdicts, [judged.verdict for judged in clips.of_sounds])

    def _report_finished(
        self,
        request: EngineRequest,
        result: GenerationResult,
        files: tuple[FinishedFile, ...],
        warnings: tuple[str, ...],
        safety: Mapping[str, Any],
        times: Mapping[str, float],
    ) -> None:
        self.link.send(
            JobFinished(
                attempt=request.job.attempt,
                files=files,
                input=result.params.to_dict(),
                timings={**added_up(asdict(result.timings), request.earlier), **times},
                actual_seconds=result.timings.device_seconds,
                warnings=warnings,
                safety=safety,
            )
        )

    def _show_part(self, attempt: str, number: int, path: Path) -> None:
        self.link.send(LivePart(attempt=attempt, number=number, path=str(path)))

    def _drop_live(self, attempt: str) -> None:
        self.link.send(LiveDropped(attempt=attempt))

    def _finish_images(self, request: EngineRequest, result: GenerationResult) -> None:
        """Filter and write the images, and report the job finished or failed."""
        job, steps = request.job, request.num_steps
        verdicts: list[Verdict] = []
        seconds: list[float] = []
        try:
            self.link.send(StepProgress(attempt=job.attempt, phase="filter", step=steps, total=steps))
            for frames in result.frames:
                judged = self._judge(job.attempt, "image", frames)
                verdicts.append(judged.verdict)
                seconds.append(judged.seconds)
            shown = passed(result, verdicts)
            with writing(result.request_id):
                files = self.images.write(shown, Path(job.folder), job.output_format)
        except Exception as error:  # any error of a job fails only that job
            failure = job_failure(job.attempt, error, result.timings.device_seconds)
            self.link.send(replace(failure, safety=self.images.record(verdicts)))
            return
        times = {"filter_seconds": sum(seconds)}
        self._report_finished(request, result, files, shown.warnings, self.images.record(verdicts), times)

    def _finish_sounds(self, request: EngineRequest, result: GenerationResult) -> None:
        """Judge and write the sounds, and report the job finished or failed."""
        from diffuserve.engine_process.output import sound_output  # it loads PyAV

        job, steps = request.job, request.num_steps
        judged: list[Judgement] = []
        try:
            sound_output.check_sounds_leave(result.request_id, self.images)
            self.link.send(StepProgress(attempt=job.attempt, phase="filter", step=steps, total=steps))
            for sound in result.sounds:
                judged.append(self.images.judge_sound(sound))
                self._report_judgement(job.attempt, "sound", judged[-1])
                sound_output.check_passed(result.request_id, judged[-1].verdict)
            files = sound_output.write_sounds(self.images, result, Path(job.folder), job.output_format)
        except Exception as error:  # any error of a job fails only that job
            failure = job_failure(job.attempt, error, result.timings.device_seconds)
            self.link.send(replace(failure, safety=self._record_of_sounds(judged)))
            return
        times = {"filter_seconds": sum(each.seconds for each in judged)}
        record = self._record_of_sounds(judged)
        self._report_finished(request, result, files, result.warnings, record, times)

    def _record_of_sounds(self, judged: Sequence[Judgement]) -> dict[str, Any]:
        return self.images.record(None, [each.verdict for each in judged])

    def _judge(self, attempt: str, stage: str, frames: Frames) -> Judgement:
        """Return the filter's verdict and its seconds, and report them to the agent, which counts them."""
        judged = self.images.judge(frames)
        self._report_judgement(attempt, stage, judged)
        return judged

    def _report_judgement(self, attempt: str, stage: str, judged: Judgement | None) -> None:
        judge = self.images.sound_judge if stage == "sound" else self.images.image_filter
        if judged is not None and judge is not None:
            self.link.send(
                FilterVerdict(
                    attempt=attempt,
                    stage=stage,
                    action=judged.verdict.action,
                    category=judged.verdict.category,
                    seconds=judged.seconds,
                )
            )


def job_failure(attempt: str, error: Exception, seconds: float = 0.0) -> JobFailed:
    """Build the report of an error, retryable unless another attempt would fail in the same way.

    `seconds` are the device-seconds that the attempt took.
    """
    code = error.code if isinstance(error, DiffuserveError) else "internal_error"
    message = str(error) if isinstance(error, DiffuserveError) else f"{type(error).__name__}: {error}"
    is_retryable = not isinstance(error, _FINAL_ERRORS)
    return JobFailed(
        attempt=attempt, code=code, message=message, retryable=is_retryable, actual_seconds=seconds
    )


def is_clip(params: GenerationParams, output_format: str) -> bool:
    """Return whether a request's results are clips; those of one frame are images if their format can be."""
    return (params.num_frames or 1) > 1 or (output_format in VIDEO_FORMATS and output_format != "webp")


def preview_steps(num_steps: int, num_previews: int) -> list[int]:
    """Return evenly spaced steps for previews, never the last step: the image itself follows that."""
    wanted = (round(i * num_steps / (num_previews + 1)) for i in range(1, num_previews + 1))
    return sorted({step for step in wanted if 0 < step < num_steps})


def _cells_of(preview: Image, clips: "VideoOutput | None") -> Frames:
    """Return a preview as the filter judges it: the frames of a strip one by one."""
    if clips is None:
        return [preview]
    height, width = clips.params.height or 1, clips.params.width or 1
    num_cells = max(1, round(preview.width * height / (preview.height * width)))
    edges = [number * preview.width // num_cells for number in range(num_cells + 1)]
    return [preview.crop((left, 0, right, preview.height)) for left, right in pairwise(edges)]


def _png(image: Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode()
