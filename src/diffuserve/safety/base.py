"""What looks at prompts and at images."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from diffuserve.domain.safety import FilterInfo, Verdict

if TYPE_CHECKING:
    from PIL import Image  # the control plane handles no image


class PromptFilter(Protocol):
    """The first stage: it sees every prompt before a job is stored."""

    info: FilterInfo

    async def check(self, prompt: str, tenant_id: str = "") -> Verdict:
        """By the policy as it is for this tenant. Raises `ModerationUnavailable`."""
        ...

    async def close(self) -> None: ...


class TextClassifier(Protocol):
    """Scores for a prompt; which score means what is the policy's business."""

    info: FilterInfo

    async def scores(self, prompt: str) -> Mapping[str, float]:
        """By category of the policy, in 0…1. Raises `ModerationUnavailable`."""
        ...

    async def close(self) -> None: ...


class ImageFilter(Protocol):
    """The second stage: it sees every image before it is written."""

    info: FilterInfo

    def check(self, image: "Image.Image") -> Verdict:
        """Called from several threads at once."""
        ...
