"""Values of the decoder: what enters it, and what leaves it."""

from dataclasses import dataclass

from diffuserve.engine.clip_decoding import ClipDecoding
from diffuserve.engine.outputs import FrameChunk
from diffuserve.engine.request_state import RequestState
from diffuserve.models.frames import Frames


@dataclass(frozen=True)
class Decoded:
    """The next frames of a request, or its end with all of them or an exception."""

    state: RequestState
    outcome: FrameChunk | list[Frames] | Exception

    @property
    def is_final(self) -> bool:
        return not isinstance(self.outcome, FrameChunk)


@dataclass(frozen=True)
class QueuedDecode:
    """A request that waits; `mark` identifies the device work that makes its latents.

    It makes a clip, or images, each of which takes `image_bytes`.
    """

    state: RequestState
    mark: object
    clip: ClipDecoding | None = None
    image_bytes: int = 0

    @property
    def size(self) -> tuple[int | None, int | None, int | None]:
        """Width, height and frames, in which requests that are decoded together agree."""
        params = self.state.params
        return (params.width, params.height, params.num_frames)

    def close(self) -> None:
        """Free what the decoding of a clip keeps."""
        if self.clip is not None:
            self.clip.close()
