"""Gives requests their conditioning: from the cache, else encoded in batches."""

from collections.abc import Hashable, Sequence

from diffuserve.engine.cost_model import CostModel
from diffuserve.engine.lanes import Lane, Lanes
from diffuserve.engine.model_runner import ModelRunner
from diffuserve.engine.prompt_cache import PromptCache
from diffuserve.engine.request_state import RequestState
from diffuserve.models.base import Conditioning


class PromptEncoder:
    def __init__(self, runner: ModelRunner, lanes: Lanes, cost_model: CostModel, cache_size: int) -> None:
        self._runner, self._lanes, self._cost_model = runner, lanes, cost_model
        self._cache = PromptCache(cache_size)

    def encode(self, states: Sequence[RequestState]) -> dict[str, Exception]:
        """Set the conditioning of each request; gives what failed, by request id."""
        keys = {state.request_id: self._key(state) for state in states}
        found: dict[Hashable, Conditioning | Exception] = {}
        for key in keys.values():
            cached = self._cache.get(key)
            if cached is not None:
                found[key] = cached
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

    def _encode_missing(
        self, missing: dict[Hashable, RequestState]
    ) -> dict[Hashable, Conditioning | Exception]:
        states = list(missing.values())
        for state in states:
            state.watch.start()
        params = [state.params for state in states]
        run = self._lanes.run(Lane.DENOISE, [lambda: self._runner.encode(params)])
        if run.share == 1.0:
            self._cost_model.observe_encode([state.load for state in states], run.seconds)
        for state in states:
            state.watch.encode_seconds = run.seconds
            state.watch.device_seconds += run.device_seconds / len(states)
        outcomes = dict(zip(missing, run.results[0], strict=True))
        for key, outcome in outcomes.items():
            if not isinstance(outcome, Exception):
                self._cache.put(key, outcome)
        return outcomes

    def _key(self, state: RequestState) -> Hashable:
        return self._runner.pipeline.conditioning_key(state.params)
