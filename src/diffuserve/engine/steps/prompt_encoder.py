"""The conditioning of requests: from the cache of recent prompts, else encoded in batches."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from cachetools import LRUCache

from diffuserve.engine.costs.cost_model import CostModel
from diffuserve.engine.requests.request_state import RequestState
from diffuserve.engine.runner import Runner
from diffuserve.engine.stages import Stage, StageExecutor
from diffuserve.models.layers.adapted.adapters import key_of, of_prompts
from diffuserve.models.pipelines.base import Conditioning


@dataclass(frozen=True)
class _Own:
    """The key of conditioning that belongs to one request alone."""

    request_id: str


class PromptEncoder:
    """Encodes prompts and input images, and keeps `cache_bytes` of the most recently used conditioning.

    `held_bytes` is the size of what it keeps now.
    """

    def __init__(
        self, runner: Runner, stages: StageExecutor, cost_model: CostModel, cache_bytes: int
    ) -> None:
        self._runner, self._stages, self._cost_model = runner, stages, cost_model
        self._cache: LRUCache[Hashable, Conditioning] = LRUCache(
            cache_bytes, getsizeof=lambda conditioning: conditioning.num_bytes
        )

    @property
    def held_bytes(self) -> int:
        return int(self._cache.currsize)

    @property
    def parked_bytes(self) -> int:
        """Bytes of encoded requests that the runner keeps itself, until they end."""
        return self._runner.held_bytes

    def encode(self, states: Sequence[RequestState]) -> dict[str, Exception]:
        """Set the conditioning of each request; return the failures by request id."""
        keys = {state.request_id: self._key(state) for state in states}
        found: dict[Hashable, Conditioning | Exception] = {
            key: self._cache[key] for key in keys.values() if key in self._cache
        }
        missing = {keys[state.request_id]: state for state in states if keys[state.request_id] not in found}
        if missing:
            found |= self._encode_missing(missing)
        failures = {}
        for state in states:
            outcome = found[keys[state.request_id]]
            if isinstance(outcome, Exception):
                failures[state.request_id] = outcome
            else:
                state.conditioning = outcome
        return failures

    def drop(self, state: RequestState) -> None:
        """Drop the conditioning of a request."""
        self._cache.pop(self._key(state), None)

    def _encode_missing(
        self, missing: dict[Hashable, RequestState]
    ) -> dict[Hashable, Conditioning | Exception]:
        states = list(missing.values())
        for state in states:
            state.stopwatch.start()
        run = self._stages.run(Stage.DENOISE, [lambda: self._runner.encode(states)])
        workloads = [state.workload for state in states]
        has_inputs = any(workload.input_pixels for workload in workloads)
        failed = any(isinstance(outcome, Exception) for outcome in run.results[0])
        if run.share == 1.0 and not failed and not has_inputs:
            self._cost_model.observe_encode(workloads, run.seconds)
        for state in states:
            state.stopwatch.encode_seconds = run.seconds
            state.stopwatch.device_seconds += run.device_seconds / len(states)
        outcomes = dict(zip(missing, run.results[0], strict=True))
        for key, outcome in outcomes.items():
            if isinstance(outcome, Exception) or isinstance(key, _Own):
                continue
            if outcome.num_bytes <= self._cache.maxsize:
                self._cache[key] = outcome
        return outcomes

    def _key(self, state: RequestState) -> Hashable:
        key = self._runner.pipeline.conditioning_key(state.params)
        if key is None:
            return _Own(state.request_id)
        adapters = of_prompts(state.adapters)
        return (key, key_of(adapters)) if adapters else key
