"""The registry of judges of sounds, by the names of the image filters that they come with."""

from collections.abc import Callable, Mapping

from diffuserve.safety.base import NO_IMAGE_FILTER, SoundJudge

SOUND_JUDGES: Mapping[str, Callable[[], SoundJudge]] = {}
"""Openers of judges; no filter has one yet."""
WITHHELD = "no sound leaves here, as nothing judges it; the operator may allow it by --allow-unjudged-audio"


def open_sound_judge(image_filter: str) -> SoundJudge | None:
    """Load the judge of sounds that comes with an image filter; `None` if none does."""
    opener = SOUND_JUDGES.get(image_filter)
    return None if opener is None else opener()


def lets_sounds_out(image_filter: str, allows_unjudged: bool) -> bool:
    """Return whether sounds may leave: judged, allowed without, or where no image is judged either."""
    return allows_unjudged or image_filter == NO_IMAGE_FILTER or image_filter in SOUND_JUDGES
