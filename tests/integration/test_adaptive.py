"""An engine that follows an objective: what it counts, tells and leaves alone."""

import asyncio

import pytest
from prometheus_client import generate_latest

from diffuserve.agent.metrics import WorkerMetrics
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.protocol.messages import EngineHeartbeat
from diffuserve.testing.fake_pipeline import FakePipeline

ENOUGH = 41  # requests of a window, and one whose end closes it
SMALL = GenerationParams(prompt="red", width=64, height=64, num_inference_steps=1)


def test_requests_in_time_leave_the_limit_as_it_is() -> None:
    with Engine(FakePipeline(), EngineConfig(adaptive="p95<0.001s")) as late:
        late.generate([SMALL] * ENOUGH)
        late.generate(SMALL)
        assert late.good_share is not None
        assert late.good_share < 0.5
        assert late.adaptive_limit is not None
        assert late.adaptive_limit <= late.token_budget


def test_an_engine_without_an_objective_follows_none() -> None:
    with Engine(FakePipeline(), EngineConfig()) as engine:
        engine.generate([SMALL] * ENOUGH)
        assert (engine.adaptive_limit, engine.good_share) == (None, None)


def test_a_worker_tells_the_limit_and_the_share_in_time() -> None:
    metrics = WorkerMetrics()
    beat = EngineHeartbeat(num_moves=1, num_unfinished=0, adaptive_limit=512, good_share=0.9)
    metrics.engine_heartbeat("tiny", beat)
    text = generate_latest(metrics.registry).decode()
    assert 'diffusion_worker_adaptive_limit_tokens{model="tiny"} 512.0' in text
    assert 'diffusion_worker_slo_good_share{model="tiny"} 0.9' in text


@pytest.mark.slow
async def test_the_tiny_model_follows_one_under_load() -> None:
    """Four clients draw until two windows were judged: all are served, within the ordinary budget."""
    small = GenerationParams(prompt="a star", width=64, height=64, num_inference_steps=1)
    with Engine.load("tiny-flux", device="cpu", config=EngineConfig(adaptive="p95<10ms")) as engine:

        async def client() -> None:
            for _ in range(30):
                await engine.submit(small)

        await asyncio.gather(*(client() for _ in range(4)))
        assert engine.num_unfinished == 0
        assert engine.good_share is not None
        assert engine.adaptive_limit is not None
        assert 0 < engine.adaptive_limit <= engine.token_budget
