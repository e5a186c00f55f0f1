"""Stages of a CUDA device have a stream each, and read what the other makes only once it is there."""

from collections.abc import Iterator

import pytest
import torch

from diffuserve.engine.stages import CudaStageExecutor, Stage
from support.pretend_cuda import StreamRace, pretend_cuda

CUDA = torch.device("cuda:0")


@pytest.fixture(autouse=True)
def _cuda() -> Iterator[None]:
    with pretend_cuda():
        yield


def ones() -> torch.Tensor:
    return torch.ones(3, device=CUDA)


def test_a_stage_reads_weights_that_were_loaded_before() -> None:
    weights = ones()
    [total] = CudaStageExecutor(CUDA).run(Stage.DENOISE, [lambda: (weights * 2).sum().item()]).results
    assert total == 6.0


def test_what_is_made_after_a_stage_began_is_a_race() -> None:
    stages = CudaStageExecutor(CUDA)
    late = ones()
    with pytest.raises(StreamRace):
        stages.run(Stage.DENOISE, [lambda: late * 2])


def test_decoding_begins_after_the_marked_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda.Stream, "synchronize", lambda _stream: None)
    stages = CudaStageExecutor(CUDA)
    [latents] = stages.run(Stage.DENOISE, [ones]).results
    mark = stages.mark()
    with pytest.raises(StreamRace):
        stages.run(Stage.DECODE, [lambda: latents * 2])
    [total] = stages.run(Stage.DECODE, [lambda: (latents * 2).sum().item()], after=mark).results
    assert total == 6.0


def test_the_host_works_while_the_device_does(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(torch.cuda.Stream, "synchronize", lambda _stream: order.append("waited"))
    run = CudaStageExecutor(CUDA).run(
        Stage.DENOISE, [lambda: order.append("launched")], meanwhile=lambda: order.append("prepared")
    )
    assert order == ["launched", "prepared", "waited"]
    assert len(run.results) == 1


def test_a_stage_waits_for_its_tasks() -> None:
    stages = CudaStageExecutor(CUDA)
    [latents] = stages.run(Stage.DENOISE, [ones]).results
    assert torch.equal((latents * 2).cpu(), torch.full((3,), 2.0)), "read on the default stream"
