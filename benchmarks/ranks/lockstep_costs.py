"""The measurements of a rank in its group; the launcher of ranks starts it for `lockstep.py`."""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.engine_process.ranks.lockstep import FollowerRank, LeadRunner, StepCommand
from diffuserve.models.pipelines.base import packed
from diffuserve.models.registry import load_pipeline
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.parallel.ranks import Ranks, join_ranks, leave_ranks

_COMMAND = StepCommand((), tuple(f"{number:032x}" for number in range(8)), ())
_ROUNDS = 300
_BLOCK = 30


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Costs in milliseconds. `step_ms` is a whole step of a single request, collectives included."""

    ranks: int
    side: int
    order_ms: float
    agree_ms: float
    beat_ms: float
    step_ms: float

    @property
    def own_ms(self) -> float:
        """Cost of lockstep in a step: a command and two agreements."""
        return self.order_ms + 2 * self.agree_ms


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--side", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    ranks = join_ranks(None, torch.device("cpu"), collective_seconds=120.0)
    order = _milliseconds(lambda: ranks.commands.broadcast(_COMMAND if ranks.is_lead else None))
    agree = _milliseconds(ranks.agree)
    beat = _milliseconds(_beat(ranks))
    pipeline = load_pipeline(arguments.model, LoadPlan(torch.device("cpu"), torch.float32, ranks=ranks))
    if not ranks.is_lead:
        FollowerRank(packed(pipeline), ranks).run()
    else:
        with Engine(pipeline, EngineConfig(num_threads=1), LeadRunner(packed(pipeline), ranks)) as engine:
            step = _step_milliseconds(engine, arguments.side)
        costs = Costs(
            ranks=ranks.size, side=arguments.side, order_ms=order, agree_ms=agree, beat_ms=beat, step_ms=step
        )
        arguments.out.write_text(json.dumps(asdict(costs)))
    leave_ranks()


def _milliseconds(call: Callable[[], object]) -> float:
    """Return the median over blocks of calls, after a warm-up block."""
    times = []
    for _ in range(1 + _ROUNDS // _BLOCK):
        start = time.perf_counter()
        for _ in range(_BLOCK):
            call()
        times.append(1_000 * (time.perf_counter() - start) / _BLOCK)
    return statistics.median(times[1:])


def _beat(ranks: Ranks) -> Callable[[], object]:
    """Return a rank's heartbeat with a check of all ranks, which a worker does on its own thread."""
    store = ranks.store
    assert store is not None

    def beat() -> None:
        store.set(f"bench/{ranks.index}", "1")
        for rank in range(ranks.size):
            store.check([f"bench/{rank}"])

    return beat


def _step_milliseconds(engine: Engine, side: int) -> float:
    engine.add(
        GenerationParams(
            prompt="a red circle", width=side, height=side, num_inference_steps=24, max_sequence_length=32
        )
    )
    times = []
    while engine.num_unfinished:
        start = time.perf_counter()
        engine.step()
        times.append(1_000 * (time.perf_counter() - start))
    return statistics.median(times[2:-2])  # the first encodes and meets new shapes, the last decode


if __name__ == "__main__":
    main()
