"""Files of clips, encoded as their frames come, with the parameters they were generated with."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import av
from av.container import OutputContainer
from av.video.frame import VideoFrame
from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc
from av.video.stream import VideoStream
from PIL.Image import Image, fromarray

from diffuserve.media.animation import AnimationEncoder
from diffuserve.media.image_file import read_parameters
from diffuserve.media.sound_file import SOUND_FORMATS, SOUND_TRACKS
from diffuserve.media.sound_writer import PARAMETERS, SoundStream, sound_track
from diffuserve.media.video_file import check_clip
from diffuserve.media.x264 import THREADS, codec_options, cpu_flags
from diffuserve.models.frames import Sound

H264 = "libx264"
_CODECS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "mp4": (H264, {"crf": "17", "preset": "fast"}),
    "webm": ("libsvtav1", {"crf": "27", "preset": "8", "svtav1-params": f"lp={THREADS}"}),
}
_CONTAINERS: Mapping[str, Mapping[str, str]] = {
    "mp4": {"movflags": "+faststart"},
    "webm": {"fflags": "+bitexact"},  # no random ids
}
_QUIET = ("SVT_LOG", "1")  # the AV1 encoder writes errors alone to stderr


class ClipEncoder(Protocol):
    """An encoder of one clip into a file at `path`."""

    def add(self, frame: Image) -> None:
        """Encode the next frame."""
        ...

    def finish(self) -> None:
        """Complete the file."""
        ...

    def close(self) -> None:
        """Release what is open; a file that was not finished may be left broken."""
        ...


class VideoWriter:
    """Writes a clip to `path` frame by frame; the file is there, whole, once `close` has returned.

    Its format is that of the path's suffix, one of `VIDEO_FORMATS`; all frames have the size of the first.
    Without `parameters` the file carries nothing but the clip. The `sound` is as long as the frames, at most;
    formats that are not in `SOUND_TRACKS` have none. As a context manager it closes, or abandons the file if
    an exception was raised.
    """

    def __init__(
        self, path: Path, fps: int, parameters: Mapping[str, Any], sound: Sound | None = None
    ) -> None:
        self.path = path
        self.num_frames = 0
        self._format = path.suffix.lower().removeprefix(".")
        self._partial = path.with_name(f".{path.name}.partial")
        self._fps, self._parameters = fps, parameters
        self.sound = sound if self._format in SOUND_TRACKS else None
        self._encoder: ClipEncoder | None = None

    def write(self, frames: Iterable[Image]) -> None:
        """Encode the next frames. Raise `InvalidParams` if the format cannot hold the clip."""
        for frame in frames:
            self.num_frames += 1
            check_clip(self._format, frame.width, frame.height, self.num_frames, self._fps)
            self._encoder = self._encoder or self._open(frame)
            self._encoder.add(frame)

    def close(self) -> None:
        """Complete the file. Raise `OSError` if it cannot be written; then nothing is left of it."""
        if self._encoder is None:
            raise ValueError(f"{self.path.name} has no frame")
        try:
            self._encoder.finish()
            os.replace(self._partial, self.path)
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Give up, and remove what was written."""
        with suppress(OSError):  # losing this output does no harm
            if self._encoder is not None:
                self._encoder.close()
        self._partial.unlink(missing_ok=True)

    def __enter__(self) -> "VideoWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def _open(self, frame: Image) -> ClipEncoder:
        if self._format in _CODECS:
            encoder = _StreamEncoder(self._partial, self._format, frame.size, self._fps, self._parameters)
            if self.sound is not None:
                encoder.add_sound(self.sound)
            return encoder
        return AnimationEncoder(self._partial, self._format, self._fps, self._parameters)


def save_video(
    frames: Iterable[Image],
    path: Path,
    fps: int,
    parameters: Mapping[str, Any] | None = None,
    sound: Sound | None = None,
) -> None:
    """Write a clip atomically in the format of the path's suffix, one of `VIDEO_FORMATS`."""
    with VideoWriter(path, fps, parameters or {}, sound) as writer:
        writer.write(frames)


class _StreamEncoder:
    """An encoder of MP4 or WebM, which holds no more frames than its codec looks ahead."""

    def __init__(
        self,
        path: Path,
        container_format: str,
        size: tuple[int, int],
        fps: int,
        parameters: Mapping[str, Any],
    ) -> None:
        os.environ.setdefault(*_QUIET)  # noqa: TID251 (read by a library, which has no other switch)
        codec, options = _CODECS[container_format]
        self._path, self._fps, self._format = path, fps, container_format
        self._container = av.open(
            str(path), "w", format=container_format, options=dict(_CONTAINERS[container_format])
        )
        if parameters:
            self._container.metadata[PARAMETERS] = json.dumps(parameters, ensure_ascii=False)
        self._stream = video_stream(self._container, codec, options, size, fps)
        self._sound: SoundStream | None = None
        self._num_frames = 0

    def add_sound(self, sound: Sound) -> None:
        """Give the clip a sound, before its first frame."""
        self._sound = sound_track(self._container, self._format, sound)

    def add(self, frame: Image) -> None:
        self._container.mux(self._stream.encode(video_frame(frame, self._num_frames, self._stream)))
        self._num_frames += 1
        if self._sound is not None:
            self._sound.encode_until(self._num_frames / self._fps)

    def finish(self) -> None:
        if self._sound is not None:
            self._sound.finish()
        self._container.mux(self._stream.encode(None))
        self._container.close()

    def close(self) -> None:
        self._container.close()


def video_stream(
    container: OutputContainer, codec: str, options: Mapping[str, str], size: tuple[int, int], fps: int
) -> VideoStream:
    """Return a new stream of frames of this size, in the colors of BT.709, as screens expect them."""
    own = codec_options(cpu_flags()) if codec == H264 else {}
    stream = container.add_stream(codec, rate=fps, options={**options, **own})
    assert isinstance(stream, VideoStream)
    stream.width, stream.height = (side + side % 2 for side in size)
    stream.pix_fmt = "yuv420p"
    context = stream.codec_context
    context.thread_count = THREADS
    context.color_range = ColorRange.MPEG
    context.colorspace = Colorspace.ITU709
    context.color_primaries = ColorPrimaries.BT709
    context.color_trc = ColorTrc.BT709
    return stream


def video_frame(image: Image, number: int, stream: VideoStream) -> VideoFrame:
    """Return an image as the stream's frame of that number; an odd side repeats its last row or column."""
    rgb: VideoFrame = VideoFrame.from_image(_even(image.convert("RGB")))  # type: ignore[no-untyped-call]
    frame = rgb.reformat(format="yuv420p", dst_colorspace=Colorspace.ITU709, dst_color_range=ColorRange.MPEG)
    assert stream.average_rate is not None
    frame.pts, frame.time_base = number, Fraction(1) / stream.average_rate
    return frame


def _even(image: Image) -> Image:
    """Return an image of even sides: frames whose colors are stored at half the size have no others."""
    width, height = image.size
    if width % 2 == height % 2 == 0:
        return image
    padded = image.crop((0, 0, width + width % 2, height + height % 2))
    padded.paste(image.crop((width - 1, 0, width, height)), (width - 1 + width % 2, 0))
    padded.paste(padded.crop((0, height - 1, padded.width, height)), (0, height - 1 + height % 2))
    return padded


def read_clip_parameters(path: Path) -> dict[str, Any]:
    """Return the parameters that the file of a clip or sound carries; `{}` if it has none or is neither."""
    suffix = path.suffix.lower().removeprefix(".")
    if suffix not in _CODECS and suffix not in SOUND_FORMATS:
        return read_parameters(path)
    try:
        with av.open(str(path)) as container:
            tags = {name.lower(): value for name, value in container.metadata.items()}
        parameters = json.loads(tags.get(PARAMETERS, "{}"))
    except (OSError, ValueError):
        return {}
    return parameters if isinstance(parameters, dict) else {}


def read_frames(path: Path) -> Iterator[Image]:
    """Yield the frames of a clip's file, RGB. Raise `av.error.FFmpegError` if it is none."""
    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            yield fromarray(frame.to_ndarray(format="rgb24"))
