"""The ends of requests: their results and failures, and the second try of those that ran out of memory."""

import logging
from collections.abc import Callable

from torch import Tensor

from diffuserve.domain.errors import (
    DiffuserveError,
    EngineClosed,
    InvalidParams,
    NumericalFailure,
    OutOfMemory,
    RequestFailed,
)
from diffuserve.domain.models.known_words import Vocabulary
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.model_runner import fails_for_lack_of_room, finite
from diffuserve.engine.outputs import GenerationResult, StepOutput
from diffuserve.engine.requests.phases import RequestPhase
from diffuserve.engine.requests.request_state import RequestState
from diffuserve.engine.requests.request_table import Requests
from diffuserve.engine.runner import Runner
from diffuserve.models.frames import Media
from diffuserve.models.machine.isolation import is_out_of_memory, without_frames

log = logging.getLogger(__name__)


class Endings:
    """Ends requests, and has what is kept for them released; used by the stepping thread.

    `release` is called with the id of each that ends. Words that are not in the `vocabulary` are told.
    """

    def __init__(
        self,
        requests: Requests,
        runner: Runner,
        release: Callable[[str], None],
        vocabulary: Vocabulary | None = None,
    ) -> None:
        self._requests, self._runner, self._release = requests, runner, release
        self._vocabulary = vocabulary

    def finish(self, state: RequestState, media: list[Media], latents: Tensor | None = None) -> StepOutput:
        """End a request with what it has made."""
        encoded = () if state.conditioning is None else state.conditioning.warnings
        result = GenerationResult(
            request_id=state.request_id,
            params=state.params,
            media=media,
            timings=state.stopwatch.timings(),
            warnings=(*encoded, *self._warnings_of(state.params)),
            latents=latents,
        )
        self._forget(state)
        return state.output(state.num_decoded, finished=True, result=result)

    def _warnings_of(self, params: GenerationParams) -> tuple[str, ...]:
        """Return warnings about a request's size, sampler and words; an adapter may have taught any word."""
        spec = self._runner.pipeline.spec
        told = (*spec.size_warnings(params), *spec.sampler_warnings(params), *spec.syntax_warnings(params))
        if self._vocabulary is None or params.adapters:
            return told
        return (*told, *self._vocabulary.warnings(params.prompt or "", spec.name))

    def finish_denoised(self, state: RequestState) -> StepOutput:
        """End a request with its latents, unless there are numbers among them that are not finite."""
        assert state.latents is not None
        try:
            return self.finish(state, [], finite(state.latents).cpu())
        except FloatingPointError as error:
            return self.fail(state, error)

    def fail_or_retry(self, state: RequestState, cause: Exception) -> StepOutput:
        """Fail a request, unless it ran out of memory beside others: then it is tried again by itself."""
        if not fails_for_lack_of_room(state, cause):
            return self.fail(state, cause)
        log.warning("request %s ran out of memory beside others; it is tried by itself", state.request_id)
        state.exclusive = True
        return state.output(state.num_decoded)

    def fail(self, state: RequestState, cause: Exception) -> StepOutput:
        """End a request with an error."""
        self._forget(state)
        error = _as_failure(state.request_id, cause)
        return state.output(state.num_decoded, finished=True, error=error)

    def _forget(self, state: RequestState) -> None:
        self._requests.move(state, RequestPhase.ENDED)
        self._runner.forget(state.request_id)
        self._release(state.request_id)


def _as_failure(request_id: str, cause: Exception) -> DiffuserveError:
    """Return the error that a request ends with, and log unexpected ones."""
    if isinstance(cause, RequestFailed | EngineClosed | InvalidParams):
        return cause
    kind = RequestFailed
    if is_out_of_memory(cause):
        kind = OutOfMemory
    elif isinstance(cause, FloatingPointError):
        kind = NumericalFailure
    error = kind(request_id, f"{type(cause).__name__}: {cause}")
    error.__cause__ = without_frames(cause)  # frames would keep the request's tensors alive
    # The message may quote the prompt, so the log names only the kind and the places.
    log.warning("request %s failed: %s", request_id, "\n".join([type(cause).__name__, *_notes(cause)]))
    return error


def _notes(error: Exception) -> list[str]:
    return list(getattr(error, "__notes__", ()))
