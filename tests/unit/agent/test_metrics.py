"""The metrics of a worker."""

import socket
from typing import Any

import pytest
from prometheus_client import generate_latest

from diffuserve.agent.engines.served_model import ServedModel
from diffuserve.agent.metrics import WorkerMetrics
from diffuserve.agent.spot.base import NoticeKind
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.workers.worker import WorkerState
from diffuserve.protocol.config import EngineProcessConfig
from diffuserve.protocol.messages import EngineHeartbeat, FilterVerdict
from support.worker_fakes import announced


@pytest.fixture
def metrics() -> WorkerMetrics:
    return WorkerMetrics()


def sample(metrics: WorkerMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def heartbeat(num_steps: int, num_request_steps: int, **values: Any) -> EngineHeartbeat:
    return EngineHeartbeat(
        num_moves=0,
        num_unfinished=0,
        num_steps=num_steps,
        num_request_steps=num_request_steps,
        **values,
    )


def test_notices_are_counted_by_kind(metrics: WorkerMetrics) -> None:
    metrics.spot_notice(NoticeKind.INTERRUPTION)
    assert sample(metrics, "diffusion_worker_spot_notices_total", kind="interruption") == 1.0


async def test_a_port_that_is_taken_is_refused(metrics: WorkerMetrics) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        serving = metrics.served("127.0.0.1", other.getsockname()[1])
        with pytest.raises(InvalidParams, match=r"metrics_port=.*give another --metrics-port"):
            await serving.__aenter__()


def test_steps_are_observed_by_their_mean_since_the_last_heartbeat(metrics: WorkerMetrics) -> None:
    metrics.engine_heartbeat("m", heartbeat(10, 10, num_step_tokens=1000, denoise_seconds=5.0))
    metrics.engine_heartbeat("m", heartbeat(14, 14, num_step_tokens=3000, denoise_seconds=6.0))
    assert sample(metrics, "diffusion_step_tokens_sum") == 100.0 + 500.0
    assert sample(metrics, "diffusion_step_seconds_sum", model="m") == 0.5 + 0.25


def test_a_load_is_counted_once(metrics: WorkerMetrics) -> None:
    model = ServedModel(EngineProcessConfig(model="m"), announced("m"), num_loads=1)
    for load_seconds, num_loads in ((2.0, 1), (2.0, 1), (3.0, 2)):
        model.load_seconds, model.num_loads = load_seconds, num_loads
        metrics.set_models([model])
    assert sample(metrics, "diffusion_gpu_seconds_total", model="m", outcome="load") == 5.0


def test_the_batch_size_is_the_mean_since_the_last_heartbeat(metrics: WorkerMetrics) -> None:
    metrics.engine_heartbeat("m", heartbeat(10, 20))
    metrics.engine_heartbeat("m", heartbeat(14, 40))
    assert sample(metrics, "diffusion_batch_size_count") == 2
    assert sample(metrics, "diffusion_batch_size_sum") == 2.0 + 5.0


def test_an_idle_heartbeat_observes_no_batch(metrics: WorkerMetrics) -> None:
    metrics.engine_heartbeat("m", heartbeat(10, 20))
    metrics.engine_heartbeat("m", heartbeat(10, 20))
    assert sample(metrics, "diffusion_batch_size_count") == 1


def test_a_restarted_engine_counts_from_zero(metrics: WorkerMetrics) -> None:
    metrics.engine_heartbeat("m", heartbeat(10, 20))
    metrics.engine_heartbeat("m", heartbeat(0, 0))
    metrics.engine_heartbeat("m", heartbeat(1, 3))
    assert sample(metrics, "diffusion_batch_size_sum") == 2.0 + 3.0


def test_the_last_step_is_kept_through_heartbeats_without_one(metrics: WorkerMetrics) -> None:
    metrics.engine_heartbeat("m", heartbeat(1, 1, last_step_seconds=0.25))
    metrics.engine_heartbeat("m", heartbeat(1, 1))
    assert sample(metrics, "diffusion_worker_step_seconds") == 0.25


def test_a_worker_is_in_one_state_at_a_time(metrics: WorkerMetrics) -> None:
    for current in (WorkerState.READY, WorkerState.STALLED):
        metrics.set_state(current)
        for state in WorkerState:
            value = sample(metrics, "diffusion_worker_state", state=state)
            assert value == (1.0 if state is current else 0.0)


def test_verdicts_are_counted_by_stage_category_and_action(metrics: WorkerMetrics) -> None:
    metrics.judged(FilterVerdict(attempt="j", stage="image", action="block", category="nsfw", seconds=0.02))
    metrics.judged(FilterVerdict(attempt="j", stage="preview", action="allow", category="", seconds=0.01))
    name = "diffusion_safety_verdicts_total"
    assert sample(metrics, name, stage="image", category="nsfw", action="block") == 1
    assert sample(metrics, name, stage="preview", category="none", action="allow") == 1
    assert sample(metrics, "diffusion_safety_filter_seconds_sum", stage="image") == 0.02


def test_jobs_are_counted_by_status_and_timed_by_model_and_steps(metrics: WorkerMetrics) -> None:
    metrics.job_ended("succeeded")
    metrics.job_ended("succeeded")
    metrics.generated("m", 4, 1.5)
    assert sample(metrics, "diffusion_worker_jobs_total", status="succeeded") == 2
    assert sample(metrics, "diffusion_generation_duration_seconds_sum", model="m", steps="4") == 1.5


def test_workers_in_one_process_have_metrics_of_their_own(metrics: WorkerMetrics) -> None:
    metrics.engine_died()
    metrics.lease_lost()
    assert b"engine_restarts_total 1.0" in generate_latest(metrics.registry)
    assert b"engine_restarts_total 0.0" in generate_latest(WorkerMetrics().registry)
