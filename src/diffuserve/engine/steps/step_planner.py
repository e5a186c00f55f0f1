"""Plans of steps: the scheduler's decisions, taken for the requests and budgets of one engine."""

import time
from collections.abc import Iterable, Sequence

from diffuserve.engine.config import EngineConfig
from diffuserve.engine.policy.scheduler import Candidate, StepLimits, StepScheduler
from diffuserve.engine.policy.sharing import Work
from diffuserve.engine.requests.request_state import RequestState
from diffuserve.engine.requests.request_table import Requests
from diffuserve.engine.steps.budgets import Budgets


class StepPlanner:
    """Chooses who takes the next step, who waits for it in memory, and who is encoded along."""

    def __init__(self, config: EngineConfig, requests: Requests, budgets: Budgets) -> None:
        self._config, self._requests, self._budgets = config, requests, budgets
        self._scheduler = StepScheduler(
            config.ageing_steps, config.step_order, config.same_steps_only, config.max_wait_seconds
        )

    def choose(self) -> list[RequestState]:
        """Return the requests that take the next step, in order of precedence, each with its turn."""
        limits = self._budgets.limits()
        chosen = self._scheduler.select(self._candidates(limits), limits)
        return [self._requests.stepping[request_id].take_turn(limits.tokens) for request_id in chosen]

    def seconds_to_collect(self) -> float:
        """Return how long the requests that wait are still held back for other requests."""
        if not self._config.max_wait_seconds:
            return 0.0
        waited = time.perf_counter() - min(state.stopwatch.added for state in self._states)
        limits = self._budgets.limits()
        return self._scheduler.seconds_to_wait(self._candidates(limits), limits, waited)

    def count_step(self, chosen: Sequence[RequestState]) -> None:
        """Note who is passed over by a step, who is not, and how long all will have been here after it."""
        limits, chosen_ids = self._budgets.limits(), {state.request_id for state in chosen}
        first_priority = chosen[0].options.priority
        seconds = self._step_seconds(chosen)
        for state in self._states:
            state.age_seconds += seconds
            if state.request_id in chosen_ids:
                tokens = state.workload.step_tokens
                state.skipped = self._scheduler.skipped_after_turn(state.skipped, tokens, limits)
            elif self._scheduler.is_skipped(state.options.priority, first_priority):
                state.skipped += 1

    def _step_seconds(self, chosen: Sequence[RequestState]) -> float:
        workloads = [state.turn_workload for state in chosen]
        tokens = sum(workload.step_tokens for workload in workloads)
        return self._budgets.step_cost.seconds(Work(tokens, self._budgets.fit.added_seconds(workloads)))

    def to_swap_out(self, chosen: Sequence[RequestState]) -> list[RequestState]:
        """Return the waiting requests that give back their memory to the chosen; for an exclusive one all."""
        chosen_ids = {state.request_id for state in chosen}
        limits = self._budgets.limits()
        waiting = [state for state in self._states if state.request_id not in chosen_ids]
        held = sum(state.held_bytes for state in waiting)
        needed = sum(state.turn_bytes for state in chosen)
        excess = held if chosen[0].exclusive else held + needed - limits.step_bytes
        if excess <= 0:
            return []
        fit = self._budgets.fit
        candidates = [state.candidate(limits.tokens, fit) for state in waiting]
        leaving = self._scheduler.swapped_out(candidates, limits, excess)
        return [self._requests.stepping[request_id] for request_id in leaving]

    def to_encode(self, chosen: Sequence[RequestState]) -> list[RequestState]:
        """Return the chosen requests without conditioning, and waiting ones until the batch is full.

        Those of a lower priority wait: they have no part in the step.
        """
        unencoded = [state for state in chosen if state.conditioning is None]
        if not unencoded or chosen[0].needs_device or not self._budgets.limits().encodes_ahead:
            return unencoded
        room = max(0, self._config.encode_batch_size - len(unencoded))
        waiting = [
            state
            for state in self._states
            if state.is_ready_to_encode
            and state not in unencoded
            and state.options.priority >= chosen[0].options.priority
        ]
        return unencoded + waiting[:room]

    def following(self, stepping: Sequence[RequestState]) -> list[RequestState]:
        """Return the requests that should take the step after the one that the device works on.

        They have their turns, except those whose present turns are the device's just now.
        """
        chosen, limits = {state.request_id for state in stepping}, self._budgets.limits()
        following = self._scheduler.select_after(self._candidates(limits), chosen, limits)
        for request_id in set(following) - chosen:
            self._requests.stepping[request_id].take_turn(limits.tokens)
        return [self._requests.stepping[request_id] for request_id in following]

    @property
    def _states(self) -> Iterable[RequestState]:
        return self._requests.stepping.values()

    def _candidates(self, limits: StepLimits) -> list[Candidate]:
        fit = self._budgets.fit
        return [state.candidate(limits.tokens, fit) for state in self._states]
