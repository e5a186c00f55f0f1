"""Denoising steps on the device: their micro-batches, their seconds, and who pays for them."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from diffuserve.domain.models.cost import Workload
from diffuserve.engine.costs.cost_model import CostModel
from diffuserve.engine.policy.sharing import num_micro_batches
from diffuserve.engine.requests.request_state import RequestState
from diffuserve.engine.runner import Runner, StepOutcome, StepResult
from diffuserve.engine.stages import Stage, StageExecutor, StageRun
from diffuserve.engine.stats import EngineStats

MicroBatch = list[RequestState]
T = TypeVar("T")


class Denoising:
    """Runs steps; the cost model learns from those that had the device to themselves."""

    def __init__(
        self, runner: Runner, stages: StageExecutor, cost_model: CostModel, stats: EngineStats
    ) -> None:
        self._runner, self._stages, self._cost_model, self._stats = runner, stages, cost_model, stats
        # Weights that pass through the device serve one forward pass at a time, and best a large one.
        self._is_one_by_one = runner.pipeline.residency.mode.denoises_one_by_one

    def predict(self, chosen: Sequence[RequestState]) -> float:
        """Return the seconds that a step of these requests should take, their prompts and images included."""
        fit = self._cost_model.fit
        unencoded = [state.workload for state in chosen if state.conditioning is None]
        encoding = fit.encode_seconds(unencoded) if unencoded else 0.0
        return encoding + fit.step_seconds([state.turn_workload for state in chosen])

    def run(
        self, states: Sequence[RequestState], meanwhile: Callable[[], None]
    ) -> Iterator[tuple[RequestState, StepOutcome]]:
        """Run a step of encoded requests; return what it made of each. `meanwhile` runs beside the device."""
        workloads = [state.turn_workload for state in states]
        micro_batches = self._micro_batches(states, workloads)
        run = self._stages.run(
            Stage.DENOISE,
            [partial(self._runner.step, micro_batch) for micro_batch in micro_batches],
            self._cost_model.expected_step_seconds(workloads),
            meanwhile=meanwhile,
        )
        self._charge(states, workloads, run)
        self._observe(micro_batches, run)
        self._stats.count_step(len(states), sum(each.step_tokens for each in workloads), run.seconds)
        return _by_request(micro_batches, run.results)

    def _micro_batches(
        self, states: Sequence[RequestState], workloads: Sequence[Workload]
    ) -> list[MicroBatch]:
        tokens = [workload.step_tokens for workload in workloads]
        most = 1 if self._is_one_by_one else self._stages.num_core_slots(Stage.DENOISE)
        return balanced_micro_batches(states, tokens, num_micro_batches(sum(tokens), most))

    def _charge(
        self,
        states: Sequence[RequestState],
        workloads: Sequence[Workload],
        run: StageRun[list[StepOutcome]],
    ) -> None:
        shares = self._cost_model.fit.step_shares(workloads)
        for state, share in zip(states, shares, strict=True):
            state.stopwatch.device_seconds += run.device_seconds * share

    def _observe(self, micro_batches: Sequence[MicroBatch], run: StageRun[list[StepOutcome]]) -> None:
        """Learn from a step, unless it was not whole: a request failed, or its pipeline had nothing to do."""
        is_whole = all(_is_whole(outcome) for outcomes in run.results for outcome in outcomes)
        if run.share == 1.0 and is_whole:
            # The heaviest micro-batch is what the others waited for.
            of_micro_batches = [
                [state.turn_workload for state in micro_batch] for micro_batch in micro_batches
            ]
            heaviest = max(
                of_micro_batches,
                key=lambda micro_batch: sum(workload.step_tokens for workload in micro_batch),
            )
            self._cost_model.observe_step(heaviest, run.seconds)


def _is_whole(outcome: StepOutcome) -> bool:
    if isinstance(outcome, StepResult):
        return outcome.num_passes > 0
    return not isinstance(outcome, Exception)


def _by_request(
    micro_batches: Sequence[MicroBatch], results: Sequence[Sequence[StepOutcome]]
) -> Iterator[tuple[RequestState, StepOutcome]]:
    for micro_batch, outcomes in zip(micro_batches, results, strict=True):
        yield from zip(micro_batch, outcomes, strict=True)


def balanced_micro_batches(
    items: Sequence[T], weights: Sequence[int], num_micro_batches: int
) -> list[list[T]]:
    """Split items into at most `num_micro_batches` lists of about equal weight, none of them empty.

    Greedy: the heaviest item first, each into the lightest micro-batch so far (Graham 1969, "Bounds on
    multiprocessing timing anomalies": at most 4/3 of the optimal largest weight).
    """
    num_micro_batches = min(num_micro_batches, len(items))
    micro_batches: list[list[T]] = [[] for _ in range(num_micro_batches)]
    totals = [0] * num_micro_batches
    for index in sorted(range(len(items)), key=lambda i: -weights[i]):
        lightest = totals.index(min(totals))
        micro_batches[lightest].append(items[index])
        totals[lightest] += weights[index]
    return micro_batches
