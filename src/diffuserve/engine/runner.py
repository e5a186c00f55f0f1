"""The contract between the engine's stages and what runs the model: for each request a value or its error."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from diffuserve.domain.requests.adapter_use import AdapterUse
from diffuserve.engine.outputs import FrameChunk
from diffuserve.engine.requests.clip_decoding import ClipDecoding
from diffuserve.engine.requests.request_progress import RequestProgress
from diffuserve.engine.requests.request_state import RequestState
from diffuserve.engine.requests.swapping import progress_of
from diffuserve.models.frames import Media
from diffuserve.models.pipelines.base import Conditioning, Pipeline
from diffuserve.samplers.base import Memory


@dataclass(frozen=True)
class StepResult:
    """A request's latents and sampler memory after a step, and its previews if it asked for them.

    The previews' pixels are on the CPU once the stage has waited for its work. There are no latents where
    the request runs by itself, and its pipeline tells none. One without `num_passes` says nothing of costs: a
    pipeline may make fewer steps than it was asked for.
    """

    latents: Tensor | None
    memory: Memory
    previews: tuple[Tensor, ...] = ()
    num_passes: int = 1


@dataclass(frozen=True)
class TurnResult:
    """The prediction of a turn that is not the last one of its step; its first axis counts images."""

    prediction: Tensor


StepOutcome = StepResult | TurnResult | Exception
"""The outcome of a step or turn for one request."""


class Runner(ABC):
    """Runs batches; methods return, for each request, its value or the exception that it alone raised.

    `on_work` is called with the requests' ids before each piece of work, on the thread that does the work.
    `num_ranks` is the number of processes that share the work. A runner that leads other ranks, or that holds
    requests itself, overrides `forget` and `close`.
    """

    num_ranks = 1

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.on_work: Callable[[Sequence[str]], None] = lambda _request_ids: None

    @property
    def held_bytes(self) -> int:
        """Bytes on the device of requests between their steps, beside what their states hold."""
        return 0

    @abstractmethod
    def encode(self, states: Sequence[RequestState]) -> list[Conditioning | Exception]:
        """Encode prompts and input images."""

    @abstractmethod
    def step(self, states: Sequence[RequestState]) -> list[StepOutcome]:
        """Run one step or turn of each request; no state advances."""

    @abstractmethod
    def decode(self, states: Sequence[RequestState]) -> list[list[Media] | Exception]:
        """Return the images in the turns of denoised requests; all must have one size."""

    def prepare(self, states: Sequence[RequestState]) -> None:  # noqa: B027 (most do nothing)
        """Do ahead what the step that is expected next will need."""

    def decodes_in_chunks(self, state: RequestState) -> bool:
        """Return whether the request has clips, which `decode_chunk` decodes instead of `decode`."""
        return False

    def decode_chunk(self, clip: ClipDecoding) -> FrameChunk | Exception:
        """Return the next frames of the clips of a denoised request."""
        raise NotImplementedError

    def progress(self, state: RequestState) -> RequestProgress | None:
        """Return what a request goes on from, between two steps; `None` if there is nothing, or no way."""
        return progress_of(state)

    def expect(self, request_id: str, adapters: Sequence[AdapterUse]) -> None:  # noqa: B027
        """Prepare for a request whose adapters are being loaded here. Safe from any thread."""

    def forget(self, request_id: str) -> None:  # noqa: B027
        """Release what is kept for a request that has ended, or that goes on elsewhere."""

    def close(self) -> None:  # noqa: B027
        """Release what is kept for all requests; no other method is called after it."""

    def _announce(self, states: Sequence[RequestState]) -> None:
        self.on_work([state.request_id for state in states])
