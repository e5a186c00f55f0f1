"""A clip as a fragmented MP4 that grows: whatever is there of it can be played."""

from collections.abc import Iterable

import av
from av.video.stream import VideoStream
from PIL.Image import Image

from diffuserve.media.video_writer import H264, video_frame, video_stream

# Each frame is a fragment, which is written as soon as it is encoded, and refers to no later one.
_CONTAINER = {"movflags": "frag_every_frame+empty_moov+default_base_moof", "flush_packets": "1"}
_CODEC = {"crf": "20", "preset": "veryfast", "tune": "zerolatency"}


class LiveStream:
    """Encodes a clip as its frames come. What `add` and `finish` return are its bytes, laid end to end."""

    def __init__(self, fps: int) -> None:
        self._fps = fps
        self._sink = _Sink()
        self._container = av.open(self._sink, "w", format="mp4", options=dict(_CONTAINER))
        self._stream: VideoStream | None = None
        self._num_frames = 0

    def add(self, frames: Iterable[Image]) -> bytes:
        """Encode the next frames, and return the bytes that are new."""
        for frame in frames:
            if self._stream is None:
                self._stream = video_stream(self._container, H264, _CODEC, frame.size, self._fps)
            self._container.mux(self._stream.encode(video_frame(frame, self._num_frames, self._stream)))
            self._num_frames += 1
        return self._sink.take()

    def finish(self) -> bytes:
        """End the clip, and return its last bytes."""
        if self._stream is not None:
            self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._sink.take()


class _Sink:
    """A file that cannot be read or sought in: the container is written from its start to its end."""

    def __init__(self) -> None:
        self._content = bytearray()

    def write(self, content: bytes) -> int:
        self._content += content
        return len(content)

    def take(self) -> bytes:
        """Return what was written since the last call."""
        content = bytes(self._content)
        self._content.clear()
        return content
