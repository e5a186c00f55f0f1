"""The parts of a clip that are shown while the rest is being decoded, as files for the agent to upload."""

from collections.abc import Callable
from pathlib import Path

from diffuserve.media.live_stream import LiveStream
from diffuserve.models.frames import Frames
from diffuserve.storage.live_parts import MAX_PARTS

_PART_SECONDS = 0.5


class LiveParts:
    """Writes a part for each half second of a clip, and passes its number and path to `on_part`."""

    def __init__(self, folder: Path, fps: int, on_part: Callable[[int, Path], None]) -> None:
        self._folder, self._fps, self._on_part = folder, fps, on_part
        self._stream = LiveStream(fps)
        self._content = b""
        self._num_waiting = 0
        self._num_parts = 0

    def add(self, frames: Frames, is_last: bool) -> None:
        """Add the next frames, all of which have passed the image filter."""
        self._content += self._stream.add(frames)
        self._num_waiting += len(frames)
        if is_last:
            self._content += self._stream.finish()
        if is_last or self._num_waiting >= _PART_SECONDS * self._fps:
            self._write_part()

    def close(self) -> None:
        """Release the encoder; no part follows."""
        self._stream.finish()

    def _write_part(self) -> None:
        if self._num_parts == MAX_PARTS:  # hours: the clip's file has the rest
            return
        path = self._folder / f"live-{self._num_parts:04d}.m4s"
        path.write_bytes(self._content)
        self._on_part(self._num_parts, path)
        self._content, self._num_waiting = b"", 0
        self._num_parts += 1
