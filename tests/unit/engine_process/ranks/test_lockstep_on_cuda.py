"""A rank that follows keeps the two stages apart on its GPU, as rank 0 does."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine_process.ranks.lockstep import DecodeCommand, FollowerRank, JoiningRequest, StepCommand
from diffuserve.models.pipelines.base import PackedPipeline, packed
from diffuserve.models.registry import load_pipeline
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.parallel.ranks import Ranks
from diffuserve.testing.checkpoints import write_flux_checkpoint
from support.pretend_cuda import CudaLog, pretend_cuda


class LastRank(Ranks):
    """Rank 1 of two, which hears commands from a test and sends what it decodes to it."""

    def __init__(self) -> None:
        self.index, self.size = 1, 2
        self.commands: Any = self
        self.images: Any = self
        self.sent: dict[str, Any] = {}

    def all_true(self, value: bool) -> bool:
        return value

    def send(self, message: Any, rank: int) -> None:
        self.sent |= message


@pytest.fixture
def log() -> Iterator[CudaLog]:
    with pretend_cuda() as log:
        yield log


@pytest.fixture
def pipeline(tmp_path: Path, log: CudaLog) -> PackedPipeline:
    return packed(
        load_pipeline(str(write_flux_checkpoint(tmp_path / "flux")), LoadPlan(torch.device("cuda:0")))
    )


def test_each_stage_has_a_stream_and_none_uses_the_default_one(
    log: CudaLog, pipeline: PackedPipeline
) -> None:
    params = GenerationParams(prompt="a red circle", width=64, height=64, seed=1, num_inference_steps=1)
    params = pipeline.spec.resolve(params, seed=1)
    [conditioning] = pipeline.encode([params])
    ranks = LastRank()
    follower = FollowerRank(pipeline, ranks)
    log.clear()
    follower.step(StepCommand((JoiningRequest("one", params, conditioning),), ("one",), ()))
    denoising = set(log.streams)
    log.clear()
    follower._decode(DecodeCommand({"one": 1}))
    decoding = set(log.streams)
    assert len(denoising) == len(decoding) == 1
    assert len(denoising | decoding | {"default stream"}) == 3
    [media] = ranks.sent["one"]
    assert media.frames[0].size == (64, 64)
