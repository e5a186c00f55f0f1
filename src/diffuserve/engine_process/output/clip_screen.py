"""The image filter on the frames of a clip, as they come."""

from collections.abc import Callable
from dataclasses import dataclass

from diffuserve.domain.safety import PASSES, Verdict
from diffuserve.models.frames import Frames
from diffuserve.safety.image import is_judged, merged


@dataclass(frozen=True)
class Judgement:
    """The image filter's verdict on one image or clip, and the seconds that it took."""

    verdict: Verdict
    seconds: float


class ClipScreen:
    """Judges the frames of a clip that `is_judged` chooses, before any of them gets out.

    A frame that is not judged itself is held until the next judged one, so that no frame is released before
    the judged frames on both sides of it have passed.
    """

    def __init__(self, judge: Callable[[Frames], Judgement], num_frames: int, every: int) -> None:
        self._judge, self._num_frames, self._every = judge, num_frames, every
        self._num_seen = 0
        self._kept_back: Frames = []
        self.judgement = Judgement(PASSES, 0.0)

    def pass_on(self, frames: Frames) -> Frames:
        """Judge the next frames, and return those that are released, with any verdict."""
        free: Frames = []
        for frame in frames:
            self._kept_back.append(frame)
            if is_judged(self._num_seen, self._num_frames, self._every):
                self._note(self._judge([frame]))
                free += self._kept_back
                self._kept_back = []
            self._num_seen += 1
        return free

    def _note(self, new: Judgement) -> None:
        verdict = merged([self.judgement.verdict, new.verdict])
        self.judgement = Judgement(verdict, self.judgement.seconds + new.seconds)
