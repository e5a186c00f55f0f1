"""The values that the engine returns."""

from concurrent.futures import Future
from dataclasses import astuple, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from PIL.Image import Image

from diffuserve.domain.errors import DiffuserveError
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.media.preview import enlarged
from diffuserve.models.frames import Frames, Media, Sound

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Timings:
    """Seconds of a request's phases: wall-clock time, except `device_seconds`.

    `device_seconds` is the request's share of the busy device: a step shared with others counts in part, so
    that the sum over all requests is the time that the device was busy.
    """

    queue_seconds: float
    encode_seconds: float
    denoise_seconds: float
    decode_seconds: float
    total_seconds: float
    device_seconds: float

    def plus(self, other: "Timings") -> "Timings":
        """Return the sum of two timings, for a request that moved to another engine."""
        return Timings(*(own + added for own, added in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class GenerationResult:
    """A finished request. `params` has every default filled in; `media[i]` belongs to seed `seed + i`.

    `media` is empty if it was streamed, or if the request ended before decoding: then `latents` are its
    finished latents on the CPU, with images along the first axis.
    """

    request_id: str
    params: GenerationParams
    media: list[Media]
    timings: Timings
    warnings: tuple[str, ...] = ()
    latents: "Tensor | None" = field(default=None, repr=False, compare=False)

    @property
    def frames(self) -> list[Frames]:
        """The frames of each image or clip; none of a sound alone."""
        return [media.frames for media in self.media if media.frames]

    @property
    def sounds(self) -> list[Sound]:
        """The sounds: of the clips, if they have one, or alone."""
        return [media.sound for media in self.media if media.sound is not None]

    @property
    def images(self) -> list[Image]:
        """The images, in RGB; for a video its first frame."""
        return [frames[0] for frames in self.frames]

    @property
    def seed(self) -> int:
        assert self.params.seed is not None
        return self.params.seed


@dataclass(frozen=True)
class FrameChunk:
    """Consecutive frames of a request's clip `index`, starting at frame number `start`.

    The first frames of a clip with sound come with all of its `sound`.
    """

    index: int
    start: int
    frames: Frames
    is_last: bool
    sound: Sound | None = None


@dataclass(frozen=True)
class StepOutput:
    """A request's progress after `Engine.step`.

    `step` of `num_steps` steps are done; afterwards `num_decoded` of the `num_frames` frames of clips are
    decoded. When `finished`, either `result` or `error` is set. `latent_previews` holds one small image per
    image, with a pixel for each latent cell, if the request asked for previews. `chunk` has the frames just
    decoded, if the request streams them. `device_seconds` is the request's share of the device so far, as in
    `Timings`.
    """

    request_id: str
    step: int
    num_steps: int
    num_decoded: int = 0
    num_frames: int = 0
    latent_previews: tuple[Image, ...] = ()
    chunk: FrameChunk | None = None
    finished: bool = False
    result: GenerationResult | None = None
    error: DiffuserveError | None = None
    device_seconds: float = 0.0

    @property
    def preview(self) -> Image | None:
        """The preview of the first image."""
        return self.previews[0] if self.latent_previews else None

    @cached_property
    def previews(self) -> tuple[Image, ...]:
        """The previews, enlarged for viewing; the reader's thread does this, so that no step waits for it."""
        return tuple(enlarged(preview) for preview in self.latent_previews)


def outcome_of(future: Future[GenerationResult]) -> GenerationResult | DiffuserveError:
    """Return the result or the error of a finished request."""
    error = future.exception()
    if error is None:
        return future.result()
    assert isinstance(error, DiffuserveError)
    return error
