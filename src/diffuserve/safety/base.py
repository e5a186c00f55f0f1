"""The interfaces of safety filters and classifiers."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from diffuserve.domain.safety import FilterInfo, Verdict

if TYPE_CHECKING:
    # Not imported at run time: the control plane handles no images and no sounds.
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image


NO_IMAGE_FILTER = "none"
"""The name of the image filter that lets everything pass."""


class PromptFilter(Protocol):
    """The first stage: it checks every prompt before a job is stored."""

    info: FilterInfo

    async def check(self, prompt: str, tenant_id: str = "") -> Verdict:
        """Return the verdict by this tenant's policy. Raise `ModerationUnavailable` if none can be given."""
        ...

    async def check_all(self, prompts: Sequence[str], tenant_id: str = "") -> list[Verdict]:
        """Return the verdict on each prompt. Raise `ModerationUnavailable` if one has none."""
        ...

    async def close(self) -> None:
        """Release what is held open."""
        ...


class TextClassifier(Protocol):
    """Gives scores for a prompt; the policy's thresholds decide what follows from them."""

    info: FilterInfo

    async def scores(self, prompt: str) -> Mapping[str, float]:
        """Return a score in 0…1 for each category. Raise `ModerationUnavailable` if there are none."""
        ...

    async def close(self) -> None:
        """Release what is held open."""
        ...


class SoundJudge(Protocol):
    """The second stage for sounds, alone or of clips: it checks each before a file is written.

    What it would blur is blocked: there is no such thing for a sound.
    """

    info: FilterInfo

    def check(self, samples: "NDArray[np.float32]", sample_rate: int) -> Verdict:
        """Return the verdict on a sound, by channels and time, in -1…1. Several threads may call this."""
        ...


class ImageFilter(Protocol):
    """The second stage: it checks every image before a file is written."""

    info: FilterInfo

    def check(self, image: "Image.Image") -> Verdict:
        """Return the verdict on an image. Several threads may call this at once."""
        ...
