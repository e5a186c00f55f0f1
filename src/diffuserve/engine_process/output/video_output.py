"""Output of a request's clips: decoded frames pass the image filter and become files."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import av

from diffuserve.domain.errors import OutputBlocked
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.safety import Action, Verdict
from diffuserve.engine.outputs import FrameChunk
from diffuserve.engine_process.output.clip_files import ClipFiles, ClipPlan
from diffuserve.engine_process.output.clip_screen import ClipScreen, Judgement
from diffuserve.engine_process.output.image_output import ImageOutput, writing
from diffuserve.engine_process.output.live_parts import LiveParts
from diffuserve.engine_process.output.sound_output import check_passed
from diffuserve.media.sound_file import SOUND_TRACKS
from diffuserve.media.video_file import DEFAULT_VIDEO_FORMAT, VIDEO_FORMATS
from diffuserve.models.frames import Frames, Sound
from diffuserve.protocol.messages import AddJob, FinishedFile
from diffuserve.safety.sound_judges import WITHHELD

_writing = partial(writing, errors=(OSError, av.FFmpegError))


@dataclass(frozen=True)
class LiveListener:
    """Receives the parts of a live clip, and a call when they may no longer be shown."""

    on_part: Callable[[int, Path], None]
    on_drop: Callable[[], None]


@dataclass
class VideoOutput:
    """Filters and writes the clips of one request, chunk by chunk, in order; one thread at a time.

    Frames get to a file once the filter has judged them. If it blocks one, the request fails with nothing
    written; if it blurs one, its whole clip is blurred, and silent. The sound of a clip is judged before its
    first frame; without a judge, unless that is allowed, the clip is silent. The `failure` is what ended it.
    """

    images: ImageOutput
    request_id: str
    job: AddJob
    params: GenerationParams
    live: LiveListener | None = None
    failure: Exception | None = None
    judgements: list[Judgement] = field(default_factory=list)
    of_sounds: list[Judgement] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    encode_seconds: float = 0.0
    _files: list[FinishedFile] = field(default_factory=list)
    _clips: list[ClipFiles] = field(default_factory=list)
    _screen: ClipScreen | None = None
    _parts: LiveParts | None = None

    def add(self, chunk: FrameChunk) -> None:
        """Take the next frames. Raise `OutputBlocked`, `OutputNotWritten`, and what a filter fails with."""
        if chunk.start == 0:
            self._begin(chunk.index, self._sound_that_leaves(chunk))
        assert self._screen is not None
        frames = self._screen.pass_on(chunk.frames)
        verdict = self._screen.judgement.verdict
        self._check(verdict)
        with _writing(self.request_id):
            if frames:
                self._write(chunk, frames, is_blurred=verdict.action is Action.BLUR)
            if chunk.is_last:
                self._end_clip()

    def finish(self) -> tuple[FinishedFile, ...]:
        """Return the files of all clips, and a thumbnail of the first one's poster."""
        poster = self._clips[0].poster
        assert poster is not None
        with _writing(self.request_id):
            thumbnail = self.images.thumbnail(poster, self._folder, self.images.origin(self.params, 0))
        return (*self._files, thumbnail)

    def abandon(self) -> None:
        """Remove the written files, and withdraw the parts that were shown."""
        self._drop_live()
        for clip in self._clips:
            clip.abandon()

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdict on each clip, and on the frames so far of one that did not end."""
        judged = [judgement.verdict for judgement in self.judgements]
        return judged if self._screen is None else [*judged, self._screen.judgement.verdict]

    def take_judgement(self) -> Judgement | None:
        """Return the judgement on the clip that goes on, which is then over; `None` between clips."""
        if self._screen is None:
            return None
        judgement, self._screen = self._screen.judgement, None
        self.judgements.append(judgement)
        return judgement

    @property
    def _folder(self) -> Path:
        return Path(self.job.folder)

    def _sound_that_leaves(self, chunk: FrameChunk) -> Sound | None:
        """Return the sound that a clip's file has. Raise `OutputBlocked`."""
        if chunk.sound is None:
            return None
        name = video_format(self.job.output_format)
        if name not in SOUND_TRACKS or not self.images.lets_sounds_out:
            reason = WITHHELD if name in SOUND_TRACKS else f"a {name} has none"
            self.warnings.append(f"the sound of clip {chunk.index} is left out: {reason}")
            return None
        judged = self.images.judge_sound(chunk.sound)
        self.of_sounds.append(judged)
        check_passed(self.request_id, judged.verdict)
        return chunk.sound

    def _begin(self, index: int, sound: Sound | None) -> None:
        params = self.params
        assert params.num_frames is not None
        assert params.seed is not None
        plan = ClipPlan(
            index=index,
            seed=params.seed + index,
            num_frames=params.num_frames,
            fps=params.fps or 1,
            folder=self._folder,
            output_format=video_format(self.job.output_format),
            origin=self.images.origin(params, index),
            sound=sound,
        )
        self._screen = ClipScreen(self.images.judge, plan.num_frames, self.images.frames_every)
        self._clips.append(ClipFiles(plan))
        if index == 0 and self.live is not None:
            self._parts = LiveParts(plan.folder, plan.fps, self.live.on_part)

    def _check(self, verdict: Verdict) -> None:
        if verdict.action is Action.BLOCK:
            reason = f"a frame of a clip is blocked by the image filter (category {verdict.category!r})"
            raise OutputBlocked(self.request_id, reason, verdict.category)

    def _write(self, chunk: FrameChunk, frames: Frames, is_blurred: bool) -> None:
        self._clips[-1].add(frames, is_blurred)
        if is_blurred:
            self._drop_live()
        elif self._parts is not None:
            self._parts.add(frames, chunk.is_last)

    def _end_clip(self) -> None:
        self._files += self._clips[-1].finish()
        self.encode_seconds += self._clips[-1].seconds
        self._parts = None

    def _drop_live(self) -> None:
        """Withdraw the shown parts of the first clip, and show no more of it."""
        if self.live is not None:
            self.live.on_drop()
        if self._parts is not None:
            self._parts.close()
        self.live = self._parts = None


def video_format(asked: str) -> str:
    """Return the format of a clip's file, for jobs that were submitted with one for images too."""
    return asked if asked in VIDEO_FORMATS else DEFAULT_VIDEO_FORMAT
