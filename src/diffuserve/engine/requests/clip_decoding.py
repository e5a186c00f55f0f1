"""The decoding of one request's clips, some frames at a time."""

from collections.abc import Iterator

import torch

from diffuserve.engine.outputs import FrameChunk
from diffuserve.engine.requests.request_state import RequestState
from diffuserve.models.frames import Frames, Sound
from diffuserve.models.pipelines.base import PackedPipeline


class ClipDecoding:
    """Decodes the clips of a request, one after another.

    The request's state counts the frames that were passed on. After a failure a new object therefore
    decodes the clip again from its start, and passes on only the frames that are new.
    """

    def __init__(self, state: RequestState, num_bytes: int) -> None:
        """Start no work; `num_bytes` is the predicted memory from the first chunk on."""
        self.state, self.num_bytes = state, num_bytes
        self._chunks: Iterator[Frames | Sound] | None = None
        self._sound: Sound | None = None
        self._position = 0  # index in the clip of the frame that the iterator yields next

    @property
    def is_done(self) -> bool:
        return self.state.num_decoded == self.state.num_frames

    @property
    def is_open(self) -> bool:
        """True between the first chunk of a clip and its last, while it holds memory."""
        return self._chunks is not None

    @property
    def start(self) -> int:
        """Index, within its clip, of the frame that is passed on next."""
        return self.state.num_decoded % self.state.clip_frames

    def next_chunk(self, pipeline: PackedPipeline) -> FrameChunk:
        """Decode until there are frames that were not passed on, and return them."""
        length = self.state.clip_frames
        index, start = divmod(self.state.num_decoded, length)
        if self._chunks is None:
            self._chunks, self._position = _clip_chunks(pipeline, self.state, index), 0
        fresh: Frames = []
        while not fresh:
            frames = self._next_frames()
            fresh = frames[max(0, start - self._position) :]
            self._position += len(frames)
        is_last, sound = self._position == length, None if start else self._sound
        chunk = FrameChunk(index, start, fresh, is_last, sound)
        self.state.num_decoded += len(fresh)
        if chunk.is_last:
            self.close()
        return chunk

    def close(self) -> None:
        """Free the memory that the pipeline keeps between the chunks of a clip."""
        close = getattr(self._chunks, "close", None)  # generators have it
        self._chunks = self._sound = None
        if close is not None:
            close()

    def _next_frames(self) -> Frames:
        assert self._chunks is not None
        with torch.inference_mode():  # a thread's own mode, and each chunk may run on another thread
            frames = next(self._chunks, None)
            if isinstance(frames, Sound):
                self._sound, frames = frames, next(self._chunks, None)
        if isinstance(frames, Sound):
            raise RuntimeError("the decoder made two sounds of a clip")
        if not frames or self._position + len(frames) > self.state.clip_frames:
            count = self._position + len(frames or [])
            raise RuntimeError(f"the decoder made {count} frames of a clip of {self.state.clip_frames}")
        return frames


def _clip_chunks(pipeline: PackedPipeline, state: RequestState, index: int) -> Iterator[Frames | Sound]:
    assert state.latents is not None
    return pipeline.decode_chunks(state.latents[index : index + 1], state.params)
