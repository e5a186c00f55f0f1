"""Ranks in lockstep, as threads of one process whose channels are queues."""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image

from diffuserve.domain.errors import RequestFailed
from diffuserve.domain.models.parts import ALL_PARTS, Parts
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.engine.outputs import GenerationResult
from diffuserve.engine.requests.checkpoint import Checkpoint
from diffuserve.engine_process.ranks.lockstep import FollowerRank, LeadRunner, rank_parts
from diffuserve.engine_process.ranks.slab_decoding import decode_in_slabs
from diffuserve.media.input_image import input_image
from diffuserve.parallel.messages import pack, unpack
from diffuserve.parallel.plan import ParallelPlan
from diffuserve.parallel.ranks import OtherRankFailed, Ranks
from diffuserve.testing.fake_pipeline import FakePipeline
from support.waiting import HANG_SECONDS, block_until

NUM_RANKS = 3


class ThreadGroup:
    """The shared part of a channel: a barrier, and a queue between each two ranks."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(NUM_RANKS, timeout=HANG_SECONDS)
        self.values: list[Any] = [None] * NUM_RANKS
        self.queues = {
            (sender, receiver): queue.Queue[Any]()
            for sender in range(NUM_RANKS)
            for receiver in range(NUM_RANKS)
        }


class ThreadChannel:
    """A rank's end of a channel; behaves as `Channel` does over Gloo."""

    def __init__(self, group: ThreadGroup, rank: int) -> None:
        self._group, self._rank = group, rank

    def gather(self, message: Any) -> list[Any]:
        self._group.values[self._rank] = unpack(pack(message))
        self._group.barrier.wait()
        gathered = list(self._group.values)
        self._group.barrier.wait()
        return gathered

    def broadcast(self, message: Any = None) -> Any:
        return self.gather(message)[0]

    def all_true(self, value: bool) -> bool:
        return all(self.gather(value))

    def send(self, message: Any, rank: int) -> None:
        self._group.queues[self._rank, rank].put(unpack(pack(message)))

    def receive(self, rank: int) -> Any:
        return self._group.queues[rank, self._rank].get(timeout=HANG_SECONDS)


_BY_SEQUENCE = ParallelPlan(sequence=NUM_RANKS)
_BY_WEIGHTS = ParallelPlan(tensor=NUM_RANKS)


class ThreadRanks(Ranks):
    """The view of one rank; `agree` and `together` are the real ones."""

    def __init__(
        self, rank: int, commands: ThreadGroup, images: ThreadGroup, plan: ParallelPlan = _BY_SEQUENCE
    ) -> None:
        self.index, self.size, self.plan = rank, NUM_RANKS, plan
        self.commands = cast(Any, ThreadChannel(commands, rank))
        self.images = cast(Any, ThreadChannel(images, rank))


@contextmanager
def running_group(
    pipelines: Sequence[FakePipeline], plan: ParallelPlan = _BY_SEQUENCE, token_budget: int = 10_000
) -> Iterator[Engine]:
    """Run followers on threads, and yield the engine of rank 0."""
    commands, images = ThreadGroup(), ThreadGroup()
    ranks = [ThreadRanks(rank, commands, images, plan) for rank in range(NUM_RANKS)]
    for pipeline, own in zip(pipelines, ranks, strict=True):
        pipeline.ranks = own
    followers = [
        threading.Thread(target=FollowerRank(pipelines[rank], ranks[rank]).run, daemon=True)
        for rank in range(1, NUM_RANKS)
    ]
    for follower in followers:
        follower.start()
    config = EngineConfig(num_threads=1, token_budget=token_budget)
    with Engine(pipelines[0], config, LeadRunner(pipelines[0], ranks[0])) as engine:
        yield engine
    for follower in followers:
        follower.join(HANG_SECONDS)
        assert not follower.is_alive()


@pytest.fixture
def pipelines() -> list[FakePipeline]:
    return [FakePipeline() for _ in range(NUM_RANKS)]


def requests(*prompts: str) -> list[GenerationParams]:
    return [
        GenerationParams(prompt=prompt, width=32, height=32, seed=number, num_inference_steps=2 + number)
        for number, prompt in enumerate(prompts)
    ]


def generate(engine: Engine, params: Sequence[GenerationParams]) -> list[GenerationResult | Exception]:
    return list(engine.generate(params, return_exceptions=True))


def pixels(outcome: GenerationResult | Exception) -> Any:
    assert isinstance(outcome, GenerationResult), outcome
    return np.asarray(outcome.images[0])


def generate_alone(params: Sequence[GenerationParams]) -> list[GenerationResult | Exception]:
    with Engine(FakePipeline(), EngineConfig(token_budget=10_000)) as engine:
        return generate(engine, params)


def test_ranks_generate_the_images_of_a_single_process(pipelines: list[FakePipeline]) -> None:
    params = requests("red", "green", "blue", "white")
    with running_group(pipelines) as engine:
        together = generate(engine, params)
    for ours, alone in zip(together, generate_alone(params), strict=True):
        np.testing.assert_array_equal(pixels(ours), pixels(alone))


def test_every_rank_steps_the_same_batches(pipelines: list[FakePipeline]) -> None:
    with running_group(pipelines) as engine:
        generate(engine, requests("red", "green", "blue"))
    batches = [
        [[params.prompt for params in batch] for batch in pipeline.denoised_batches] for pipeline in pipelines
    ]
    assert batches[0] == batches[1] == batches[2]


def test_only_the_first_rank_encodes_prompts(pipelines: list[FakePipeline]) -> None:
    with running_group(pipelines) as engine:
        generate(engine, requests("red", "green"))
    assert pipelines[0].encoded_batches
    assert [pipeline.encoded_batches for pipeline in pipelines[1:]] == [[], []]


def test_ranks_that_share_the_weights_encode_together(pipelines: list[FakePipeline]) -> None:
    """All encode the same batches, and images are those of a single process."""
    params = requests("red", "green", "blue")
    with running_group(pipelines, _BY_WEIGHTS) as engine:
        together = generate(engine, params)
        generate(engine, requests("white"))
    for ours, alone in zip(together, generate_alone(params), strict=True):
        np.testing.assert_array_equal(pixels(ours), pixels(alone))
    first, *others = [pipeline.encoded_batches for pipeline in pipelines]
    assert [len(batch) for batch in first] == [3, 1]
    assert others == [first, first]


@pytest.mark.parametrize("rank", range(NUM_RANKS))
def test_a_prompt_that_one_rank_cannot_encode_fails_alone(pipelines: list[FakePipeline], rank: int) -> None:
    pipelines[rank].on_encode = failing("green", ValueError("odd"))
    with running_group(pipelines, _BY_WEIGHTS) as engine:
        red, green, blue = generate(engine, requests("red", "green", "blue"))
    assert isinstance(green, RequestFailed)
    assert "odd" in str(green)
    for ours, alone in zip((red, blue), generate_alone(requests("red", "green", "blue"))[::2], strict=True):
        np.testing.assert_array_equal(pixels(ours), pixels(alone))


@pytest.mark.parametrize(
    ("plan", "encodes"), [(_BY_SEQUENCE, [True, False, False]), (_BY_WEIGHTS, [True] * 3)]
)
def test_ranks_load_text_encoders_where_they_encode(plan: ParallelPlan, encodes: list[bool]) -> None:
    commands, images = ThreadGroup(), ThreadGroup()
    ranks = [ThreadRanks(rank, commands, images, plan) for rank in range(NUM_RANKS)]
    assert [rank_parts(ALL_PARTS, own).encoding for own in ranks] == encodes
    assert not any(rank_parts(Parts(encoding=False), own).encoding for own in ranks)


def test_decoding_is_spread_over_the_ranks(pipelines: list[FakePipeline]) -> None:
    decoded: list[set[str]] = [set() for _ in pipelines]

    def noting(rank: int) -> Any:
        return lambda params: decoded[rank].update(request.prompt for request in params)

    for rank, pipeline in enumerate(pipelines):
        pipeline.on_decode = noting(rank)
    with running_group(pipelines) as engine:
        generate(engine, requests(*"abcdef"))
    assert [len(prompts) for prompts in decoded] == [2, 2, 2]
    assert set.union(*decoded) == set("abcdef")


def denoised(engine: Engine, params: GenerationParams) -> GenerationResult:
    """Return the result of a request that is not decoded."""
    engine.add(params, until_denoised=True)
    return finished(engine)


def finished(engine: Engine) -> GenerationResult:
    outputs = engine.step()
    while not outputs[-1].finished:
        outputs = engine.step()
    result = outputs[-1].result
    assert result is not None
    return result


def test_clips_are_decoded_by_the_first_rank_and_forgotten_by_the_others(
    pipelines: list[FakePipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    followers: list[FollowerRank] = []
    monkeypatch.setattr(FollowerRank, "run", _after(followers.append, FollowerRank.run))
    clips = [replace(params, num_frames=9, num_images=2) for params in requests("red", "green")]
    params = [*clips, *requests("blue")]
    decoded: list[list[str]] = [[] for _ in pipelines]
    for pipeline, prompts in zip(pipelines, decoded, strict=True):
        pipeline.on_decode = noting(prompts)
    with running_group(pipelines) as engine:
        together = generate(engine, params)
        generate(engine, requests("white"))
        block_until(lambda: not any(follower._states or follower._denoised for follower in followers))
    for ours, alone in zip(together, generate_alone(params), strict=True):
        np.testing.assert_array_equal(all_pixels(ours), all_pixels(alone))
    assert [prompts.count("red") for prompts in decoded] == [18, 0, 0]
    assert len(followers) == 2


@pytest.mark.parametrize("num_frames", [1, 9])
def test_ranks_denoise_what_another_engine_decodes(pipelines: list[FakePipeline], num_frames: int) -> None:
    params = replace(requests("red")[0], num_frames=num_frames)
    with running_group(pipelines) as engine, Engine(FakePipeline()) as other:
        ours, theirs = denoised(engine, params), denoised(other, params)
        assert ours.latents is not None
        assert theirs.latents is not None
        assert torch.equal(ours.latents, theirs.latents)
        engine.add(params, latents=theirs.latents)
        decoded = finished(engine)
    np.testing.assert_array_equal(all_pixels(decoded), all_pixels(generate_alone([params])[0]))
    assert pipelines[1].encoded_batches == []


def noting(prompts: list[str]) -> Callable[[Sequence[GenerationParams]], None]:
    return lambda params: prompts.extend(request.prompt for request in params)


def _after(note: Callable[[Any], None], run: Callable[[Any], None]) -> Callable[[Any], None]:
    def noted(self: Any) -> None:
        note(self)
        run(self)

    return noted


def all_pixels(outcome: GenerationResult | Exception) -> Any:
    assert isinstance(outcome, GenerationResult), outcome
    return np.asarray(outcome.frames)


def failing(prompt: str, error: Exception) -> Any:
    def check(params: Sequence[GenerationParams]) -> None:
        if any(request.prompt == prompt for request in params):
            raise error

    return check


@pytest.mark.parametrize("rank", range(NUM_RANKS))
def test_a_step_that_fails_on_any_rank_fails_its_request_alone(
    pipelines: list[FakePipeline], rank: int
) -> None:
    pipelines[rank].on_denoise = failing("bad", RuntimeError("a bug"))
    params = requests("red", "bad", "blue")
    with running_group(pipelines) as engine:
        red, bad, blue = generate(engine, params)
        (again,) = generate(engine, requests("red"))
    assert isinstance(bad, RequestFailed)
    assert "a bug" in str(bad)
    alone = generate_alone(params)
    np.testing.assert_array_equal(pixels(red), pixels(alone[0]))
    np.testing.assert_array_equal(pixels(blue), pixels(alone[2]))
    np.testing.assert_array_equal(pixels(again), pixels(alone[0]))


def test_an_image_that_fails_to_decode_on_another_rank_fails_its_request_alone(
    pipelines: list[FakePipeline],
) -> None:
    for pipeline in pipelines:
        pipeline.on_decode = failing("bad", ValueError("odd latents"))
    with running_group(pipelines) as engine:
        outcomes = generate(engine, requests("red", "bad", "blue"))
    assert [isinstance(outcome, GenerationResult) for outcome in outcomes] == [True, False, True]
    assert "odd latents" in str(outcomes[1])


def test_an_aborted_request_leaves_every_rank(pipelines: list[FakePipeline]) -> None:
    with running_group(pipelines) as engine:
        request_id = engine.add(requests("red")[0])
        engine.step()
        engine.abort(request_id)
        while engine.num_unfinished:
            engine.step()
        (outcome,) = generate(engine, requests("green"))
    assert isinstance(outcome, GenerationResult)
    last = [params.prompt for params in pipelines[-1].denoised_batches[-1]]
    assert last == ["green"]


def test_ranks_that_succeeded_learn_which_rank_failed() -> None:
    commands, images = ThreadGroup(), ThreadGroup()
    learned: list[str] = []

    def agree(rank: int) -> None:
        try:
            ThreadRanks(rank, commands, images).agree(ValueError("odd") if rank == 1 else None)
        except OtherRankFailed as failure:
            learned.append(str(failure))

    threads = [threading.Thread(target=agree, args=(rank,)) for rank in range(NUM_RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    assert learned == ["rank 1: ValueError: odd"] * 2


def test_ranks_are_told_of_input_images_and_not_their_pixels(
    pipelines: list[FakePipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    image = input_image(Image.effect_noise((64, 64), 90))
    params = replace(requests("a star")[0], image=image, strength=0.9, num_inference_steps=8, num_images=2)
    sizes: list[int] = []
    broadcast = ThreadChannel.broadcast

    def measured(channel: ThreadChannel, message: Any = None) -> Any:
        if message is not None:
            sizes.append(len(pack(message)))
        return broadcast(channel, message)

    monkeypatch.setattr(ThreadChannel, "broadcast", measured)
    with running_group(pipelines) as engine:
        (together,) = generate(engine, [params])
    (alone,) = generate_alone([params])
    assert np.array_equal(pixels(together), pixels(alone))
    num_pixels = len(image.pixels or b"")
    assert max(sizes) < num_pixels
    assert len(sizes) > 7


def checkpoints_of(engine: Engine, params: GenerationParams) -> list[Checkpoint]:
    """Return a checkpoint after each step but the last."""
    request_id, taken = engine.add(params), []
    while outputs := engine.step():
        if any(output.step < output.num_steps for output in outputs):
            taken.append(engine.checkpoint(request_id))
    return taken


def resume(engine: Engine, params: GenerationParams, taken: Sequence[Checkpoint]) -> list[GenerationResult]:
    ids = [engine.add(params, resume=checkpoint) for checkpoint in taken]
    results: dict[str, GenerationResult] = {}
    while outputs := engine.step():
        results |= {output.request_id: output.result for output in outputs if output.result is not None}
    return [results[request_id] for request_id in ids]


def test_a_request_moves_between_groups_of_ranks_and_single_processes(
    pipelines: list[FakePipeline],
) -> None:
    params = requests("red", "green", "blue", "white")[-1]
    (alone,) = generate_alone([params])
    with Engine(FakePipeline(), EngineConfig(token_budget=10_000)) as single:
        from_single = checkpoints_of(single, params)
    with running_group(pipelines) as group:
        from_group = checkpoints_of(group, params)
        moved_in = resume(group, params, from_single)
    with Engine(FakePipeline(), EngineConfig(token_budget=10_000)) as single:
        moved_out = resume(single, params, from_group)
    assert len(from_single) == len(from_group) == 4
    for moved in (*moved_in, *moved_out):
        np.testing.assert_array_equal(pixels(moved), pixels(alone))


def test_a_request_that_was_swapped_out_goes_on_all_ranks(pipelines: list[FakePipeline]) -> None:
    params = requests("red", "green", "blue")
    with running_group(pipelines) as engine:
        core = engine._core
        ids = [engine.add(each) for each in params]
        engine.step()
        for request_id in ids:
            state = core.requests.find(request_id)
            assert state is not None
            core._swap_out(state)
        results: dict[str, Any] = {}
        while outputs := engine.step():
            results |= {output.request_id: output.result for output in outputs if output.finished}
    for request_id, alone in zip(ids, generate_alone(params), strict=True):
        np.testing.assert_array_equal(pixels(results[request_id]), pixels(alone))


def test_every_rank_takes_the_turns_of_a_request_of_many_images(pipelines: list[FakePipeline]) -> None:
    params = [replace(each, num_images=count) for each, count in zip(requests("a", "b"), (5, 1), strict=True)]
    with running_group(pipelines, token_budget=64) as engine:
        drawn = generate(engine, params)
    counts = [[[each.num_images for each in batch] for batch in own.denoised_batches] for own in pipelines]
    assert counts[0] == counts[1] == counts[2]
    assert max(sum(batch) for batch in counts[0]) < 5, "in several turns"
    for outcome, alone in zip(drawn, generate_alone(params), strict=True):
        assert isinstance(outcome, GenerationResult)
        assert isinstance(alone, GenerationResult)
        assert outcome.images == alone.images


def test_a_request_that_was_swapped_out_within_a_step_goes_on_all_ranks(
    pipelines: list[FakePipeline],
) -> None:
    [params] = [replace(each, num_images=5) for each in requests("a")]
    with running_group(pipelines, token_budget=64) as engine:
        request_id = engine.add(params)
        engine.step()
        engine._core.step([], [])
        state = engine._core.requests.find(request_id)
        assert state is not None
        assert state.predicted
        engine._core._swap_out(state)
        results = []
        while outputs := engine.step():
            results += [output.result for output in outputs if output.finished]
    [alone] = generate_alone([params])
    assert isinstance(alone, GenerationResult)
    assert [result.images for result in results if result is not None] == [alone.images]


class PipelineInSlabs(FakePipeline):
    """Decodes every image with all ranks, which are there together, and rows that each rank has a slab of."""

    on_slabs: Callable[[Sequence[GenerationParams]], None] = staticmethod(lambda params: None)

    def decodes_in_slabs(self, params: GenerationParams) -> bool:
        return True

    def decode_in_slabs(self, latents: Sequence[torch.Tensor], params: Sequence[GenerationParams]) -> Any:
        assert self.ranks is not None
        self.ranks.images.gather(None)  # all are here
        self.on_slabs(params)
        return self.decode(latents, params)


def test_large_images_are_decoded_by_all_ranks_together() -> None:
    pipelines, seen = [PipelineInSlabs() for _ in range(NUM_RANKS)], list[tuple[int, str]]()
    for rank, pipeline in enumerate(pipelines):
        pipeline.on_slabs = lambda params, rank=rank: seen.append((rank, params[0].prompt))  # type: ignore[misc]
    params = requests("red", "green", "blue")
    with running_group(pipelines) as engine:
        together = generate(engine, params)
    assert sorted(seen) == sorted((rank, each.prompt) for rank in range(NUM_RANKS) for each in params)
    for ours, alone in zip(together, generate_alone(params), strict=True):
        np.testing.assert_array_equal(pixels(ours), pixels(alone))


@pytest.mark.parametrize("given", [None, float("nan")], ids=["aborted", "not-finite"])
def test_ranks_agree_before_they_decode_an_image_together(given: float | None) -> None:
    """One rank has given up the request, or has something else; the others do not wait for it."""
    images = ThreadGroup()
    ranks = [ThreadRanks(rank, ThreadGroup(), images) for rank in range(NUM_RANKS)]
    good, bad = (SimpleNamespace(turn_latents=torch.tensor(value or 0.0)) for value in (1.0, given))
    states = [good, None if given is None else bad, good]
    with ThreadPoolExecutor(NUM_RANKS) as pool:
        outcomes = list(
            pool.map(
                lambda own, state: decode_in_slabs(PipelineInSlabs(ranks=own), own, cast(Any, state)),
                ranks,
                states,
            )
        )
    assert [type(outcome) for outcome in outcomes].count(RuntimeError) == (3 if given is None else 2)
    assert "another rank cannot decode" in str(outcomes[0])
    assert isinstance(outcomes[1], RuntimeError if given is None else FloatingPointError)
