"""Conditioning comes from the cache of recent prompts, else from the text encoders."""

from collections.abc import Sequence
from pathlib import Path

import torch

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.costs.cost_model import CostModel
from diffuserve.engine.model_runner import ModelRunner
from diffuserve.engine.requests.admission import new_state
from diffuserve.engine.requests.request_state import DEFAULT_OPTIONS, RequestState
from diffuserve.engine.stages import make_stage_executor
from diffuserve.engine.steps.prompt_encoder import PromptEncoder
from diffuserve.models.families.flux.text import FluxConditioning
from diffuserve.models.layers.adapted.adapters import Adapter, Uses
from diffuserve.models.pipelines.base import packed
from diffuserve.models.registry import load_pipeline
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.testing.checkpoints import write_flux_checkpoint
from diffuserve.testing.fake_pipeline import FakePipeline

_CONDITIONING_BYTES = 24  # two colors in float32


class Encoder:
    """A prompt encoder over a fake pipeline that counts; it has room for some prompts' conditioning."""

    def __init__(self, num_kept: int) -> None:
        self.pipeline = FakePipeline()
        stages = make_stage_executor(torch.device("cpu"), 1, deterministic=True)
        cost_model = CostModel(self.pipeline.cost_prior())
        self.encoder = PromptEncoder(
            ModelRunner(self.pipeline), stages, cost_model, num_kept * _CONDITIONING_BYTES
        )

    def encode(self, *prompts: str, adapters: Sequence[Uses] = ()) -> list[str]:
        """Encode a batch; return the prompts that the text encoders had to read for it."""
        states = [self._state(number, prompt) for number, prompt in enumerate(prompts)]
        for state, uses in zip(states, adapters, strict=False):
            state.adapters = uses
        self.pipeline.encoded_batches.clear()
        failures = self.encoder.encode(states)
        for state in states:
            assert (state.conditioning is None) == (state.request_id in failures)
        return [params.prompt for batch in self.pipeline.encoded_batches for params in batch]

    def _state(self, number: int, prompt: str) -> RequestState:
        params = self.pipeline.spec.resolve(GenerationParams(prompt=prompt), seed=number)
        return RequestState(
            request_id=str(number),
            params=params,
            workload=self.pipeline.spec.workload(params),
            step_bytes=0,
            schedule=self.pipeline.schedule(params),
            arrival=number,
        )


def test_equal_prompts_of_a_batch_are_encoded_once() -> None:
    assert Encoder(8).encode("a star", "a ring", "a star") == ["a star", "a ring"]


def test_a_recent_prompt_is_not_encoded_again() -> None:
    encoder = Encoder(8)
    encoder.encode("a star")
    assert encoder.encode("a star", "a ring") == ["a ring"]


def test_equal_prompts_are_encoded_for_each_adapter_that_changes_them() -> None:
    encoder = Encoder(8)
    changing, other = (Adapter("a", {}, changes_prompts=changes) for changes in (True, False))
    uses: list[Uses] = [(), ((changing, 1.0),), ((changing, 0.5),), ((other, 1.0),)]
    assert encoder.encode(*["a star"] * 4, adapters=uses) == ["a star"] * 3
    assert encoder.encode(*["a star"] * 4, adapters=uses) == []


def test_the_least_recently_used_prompt_is_forgotten_first() -> None:
    encoder = Encoder(2)
    for prompt in ("a", "b", "a", "c"):
        encoder.encode(prompt)
    assert encoder.encode("a", "c") == []
    assert encoder.encode("b") == ["b"]


def test_a_cache_without_room_keeps_nothing() -> None:
    encoder = Encoder(0)
    assert encoder.encode("a star") == encoder.encode("a star") == ["a star"]


def test_a_batch_larger_than_the_cache_is_encoded_whole() -> None:
    assert Encoder(1).encode("a", "b", "c") == ["a", "b", "c"]


def test_a_prompt_that_failed_is_tried_again() -> None:
    encoder = Encoder(8)

    def fail(batch: object) -> None:
        raise ValueError(f"cannot read {batch}")

    encoder.pipeline.on_encode = fail
    encoder.encode("a star")
    encoder.pipeline.on_encode = lambda _: None
    assert encoder.encode("a star") == ["a star"]


def test_what_is_kept_of_a_batch_keeps_nothing_else_of_it_alive(tmp_path: Path) -> None:
    folder = write_flux_checkpoint(tmp_path / "flux")
    pipeline = packed(load_pipeline(str(folder), LoadPlan(torch.device("cpu"))))
    params = [pipeline.spec.simple_request(prompt) for prompt in ("a star", "a ring", "a square")]
    batch = [pipeline.spec.resolve(each, seed=1) for each in params]
    states = [new_state(pipeline, each, DEFAULT_OPTIONS, None) for each in batch]
    together, alone = pipeline.encode(batch)[1], ModelRunner(pipeline).encode(states)[1]
    assert isinstance(together, FluxConditioning)
    assert isinstance(alone, FluxConditioning)
    [row], [own] = together.texts, alone.texts
    assert row.untyped_storage().nbytes() == 3 * row.nbytes
    assert own.untyped_storage().nbytes() == own.nbytes
    assert alone.pooled.untyped_storage().nbytes() == alone.pooled.nbytes
    assert torch.equal(own, row)
    assert torch.equal(alone.pooled, together.pooled)


def test_the_kept_bytes_are_told() -> None:
    encoder = Encoder(2)
    encoder.encode("a star")
    assert encoder.encoder.held_bytes == _CONDITIONING_BYTES
    encoder.encode("a ring", "a square")
    assert encoder.encoder.held_bytes == 2 * _CONDITIONING_BYTES
