"""The engine's contract, run on every family and on a pipeline that is nothing like them."""

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from diffuserve.domain.errors import (
    EngineClosed,
    InvalidParams,
    ModelNotCapable,
    ModelNotFound,
    RequestAborted,
)
from diffuserve.domain.models.cost import CostFit
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.costs.cost_model import save_fit
from diffuserve.engine.engine import Engine
from diffuserve.engine.outputs import GenerationResult, StepOutput
from diffuserve.engine.policy.step_order import StepOrder
from diffuserve.models.bundled import bundled_models
from diffuserve.testing.fake_pipeline import FakePipeline
from support.engine_families import FAMILIES, FAMILIES_LIKE_FLUX, pipeline_of
from support.images import psnr
from support.waiting import HANG_SECONDS

MIXED = [
    GenerationParams(prompt="a red circle", width=64, height=64, num_inference_steps=1, seed=1),
    GenerationParams(prompt="a blue star", width=96, height=64, num_inference_steps=5, seed=2, num_images=2),
    GenerationParams(prompt="a red circle", width=64, height=96, num_inference_steps=3, seed=3),
    GenerationParams(prompt="a green ring", width=64, height=64, num_inference_steps=2, seed=4),
]


@pytest.fixture(params=FAMILIES)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with Engine(pipeline_of(request.param, request)) as engine:
        yield engine


# What an engine does with requests does not go by the family: one of each kind of pipeline shows it.
one_of_each_kind = pytest.mark.parametrize(
    "engine",
    [pytest.param(name, marks=[pytest.mark.slow] if name in FAMILIES_LIKE_FLUX else []) for name in FAMILIES],
    indirect=True,
)


def drain(engine: Engine) -> list[StepOutput]:
    outputs = []
    while step := engine.step():
        outputs += step
    return outputs


def images(engine: Engine, params: GenerationParams) -> list[Image.Image]:
    return engine.generate([params])[0].images


def assert_same(left: Image.Image, right: Image.Image) -> None:
    """Compare two images as the default mode promises: batches may sum in another order (INV-1)."""
    assert psnr(left, right) >= 50


def test_results_come_in_order_with_the_requested_images(engine: Engine) -> None:
    results = engine.generate(MIXED)
    assert [result.params.prompt for result in results] == [params.prompt for params in MIXED]
    assert [result.seed for result in results] == [1, 2, 3, 4]
    assert [len(result.images) for result in results] == [1, 2, 1, 1]
    for params, result in zip(MIXED, results, strict=True):
        assert {image.size for image in result.images} == {(params.width, params.height)}
        assert {image.mode for image in result.images} == {"RGB"}


def test_the_same_seed_gives_the_same_image_and_another_seed_another(engine: Engine) -> None:
    params = GenerationParams(prompt="a red circle", width=64, height=64, num_inference_steps=2, seed=7)
    other = GenerationParams(prompt="a red circle", width=64, height=64, num_inference_steps=2, seed=8)
    [image] = images(engine, params)
    assert_same(image, images(engine, params)[0])
    assert psnr(image, images(engine, other)[0]) < 40 or engine.spec.family == "fake"


def test_image_i_of_a_request_is_generated_with_seed_plus_i(engine: Engine) -> None:
    both = GenerationParams(prompt="a star", width=64, height=64, num_inference_steps=2, seed=7, num_images=2)
    second = GenerationParams(prompt="a star", width=64, height=64, num_inference_steps=2, seed=8)
    assert_same(images(engine, both)[1], images(engine, second)[0])


@one_of_each_kind
def test_without_a_seed_one_is_drawn_and_reported(engine: Engine) -> None:
    params = GenerationParams(prompt="a red circle", width=64, height=64, num_inference_steps=1)
    first, second = engine.generate([params, params])
    assert first.seed != second.seed
    again = GenerationParams(
        prompt="a red circle", width=64, height=64, num_inference_steps=1, seed=first.seed
    )
    assert_same(images(engine, again)[0], first.images[0])


def test_every_step_of_a_request_is_reported_once_and_in_order(engine: Engine) -> None:
    ids = [engine.add(params) for params in MIXED]
    outputs = drain(engine)
    for request_id, params in zip(ids, MIXED, strict=True):
        mine = [output for output in outputs if output.request_id == request_id]
        steps = params.num_inference_steps
        assert steps is not None
        assert [output.step for output in mine] == [*range(1, steps + 1), steps]
        assert [output.finished for output in mine] == [False] * steps + [True]
        assert all(output.num_steps == steps for output in mine)
        assert mine[-1].result is not None


@one_of_each_kind
def test_an_engine_with_nothing_to_do_returns_an_empty_list(engine: Engine) -> None:
    assert engine.step() == []


@one_of_each_kind
def test_a_request_joins_while_another_is_running(engine: Engine) -> None:
    first = engine.add(GenerationParams(prompt="a ring", width=64, height=64, num_inference_steps=6, seed=1))
    engine.step()
    second = engine.add(GenerationParams(prompt="a star", width=64, height=64, num_inference_steps=2, seed=1))
    joined = {output.request_id for output in engine.step()}
    assert joined == {first, second}
    order = [output.request_id for output in drain(engine) if output.finished]
    assert order == [second, first]


@one_of_each_kind
def test_an_aborted_request_ends_with_an_error_and_leaves_nothing_behind(engine: Engine) -> None:
    aborted = engine.add(
        GenerationParams(prompt="a ring", width=64, height=64, num_inference_steps=50, seed=1)
    )
    kept = engine.add(GenerationParams(prompt="a star", width=64, height=64, num_inference_steps=3, seed=1))
    engine.step()
    assert engine.abort(aborted)
    outputs = drain(engine)
    last = [output for output in outputs if output.request_id == aborted]
    assert len(last) == 1
    assert isinstance(last[0].error, RequestAborted)
    assert last[0].device_seconds > 0, "it took part in a step"
    assert [o.request_id for o in outputs if o.result is not None] == [kept]
    assert engine.num_unfinished == 0
    assert not engine._core.requests.stepping
    assert not engine.abort(aborted), "it is finished now"
    assert not engine.abort("unknown")


@one_of_each_kind
def test_an_abort_from_another_thread_ends_a_running_generation(engine: Engine) -> None:
    params = GenerationParams(prompt="a ring", width=64, height=64, num_inference_steps=100, seed=1)
    outcome: list[object] = []
    thread = threading.Thread(
        target=lambda: outcome.extend(engine.generate([params], return_exceptions=True))
    )
    thread.start()
    while not engine.num_unfinished:
        time.sleep(0.001)
    engine.abort(next(iter(engine._inbox.unfinished)))
    thread.join(HANG_SECONDS)
    assert isinstance(outcome[0], RequestAborted)


def test_bad_input_is_refused_before_any_work(engine: Engine) -> None:
    good = GenerationParams(prompt="a star", width=64, height=64)
    with pytest.raises(InvalidParams, match="width=8192"):
        engine.generate([good, GenerationParams(prompt="a star", width=8192, height=64)])
    assert engine.step() == []


@one_of_each_kind
def test_only_requests_with_previews_get_them(engine: Engine) -> None:
    asking = engine.add(MIXED[2], preview=True)
    silent = engine.add(MIXED[3])
    outputs = drain(engine)
    previews = [o.preview for o in outputs if o.request_id == asking and not o.finished]
    assert len(previews) == 3
    assert all(preview is not None and preview.width * 3 == preview.height * 2 for preview in previews)
    assert all(o.preview is None for o in outputs if o.request_id == silent)


@one_of_each_kind
def test_each_image_of_a_request_has_its_own_previews(engine: Engine) -> None:
    both = GenerationParams(prompt="a star", width=64, height=64, num_inference_steps=2, seed=7, num_images=2)
    together = engine.add(both, preview=True)
    alone = [engine.add(replace(both, num_images=1, seed=seed), preview=True) for seed in (7, 8)]
    outputs = [output for output in drain(engine) if output.latent_previews]
    of_both = [output.previews for output in outputs if output.request_id == together]
    of_each = [[output.preview for output in outputs if output.request_id == name] for name in alone]
    assert [len(previews) for previews in of_both] == [2, 2]
    for step, previews in enumerate(of_both):
        for shown, own in zip(previews, of_each, strict=True):
            reference = own[step]
            assert reference is not None
            assert_same(shown, reference)


@one_of_each_kind
def test_device_seconds_of_all_requests_add_up_to_the_busy_time(engine: Engine) -> None:
    start = time.perf_counter()
    results = engine.generate(MIXED)
    wall = time.perf_counter() - start
    busy = sum(result.timings.device_seconds for result in results)
    assert engine.stats.denoise_seconds * 0.3 < busy < wall * 1.05


@one_of_each_kind
async def test_asyncio_requests_share_steps_and_resolve(engine: Engine) -> None:
    results = await asyncio.gather(*(engine.submit(params) for params in MIXED))
    assert [result.seed for result in results] == [1, 2, 3, 4]
    assert engine.stats.mean_requests_per_step > 1
    with pytest.raises(RuntimeError, match="driven by submit"):
        engine.step()
    assert engine.generate(MIXED[:1])[0].seed == 1, "generate still works beside it"


@one_of_each_kind
async def test_canceling_the_task_aborts_the_request(engine: Engine) -> None:
    params = GenerationParams(prompt="a ring", width=64, height=64, num_inference_steps=100, seed=1)
    task = asyncio.create_task(engine.submit(params))
    while not engine.num_unfinished:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    while engine.num_unfinished:
        await asyncio.sleep(0.001)
    assert (await engine.submit(MIXED[0])).seed == 1


@one_of_each_kind
async def test_closing_fails_unfinished_requests(engine: Engine) -> None:
    params = GenerationParams(prompt="a ring", width=64, height=64, num_inference_steps=100, seed=1)
    task = asyncio.create_task(engine.submit(params))
    while not engine.num_unfinished:
        await asyncio.sleep(0.001)
    await asyncio.to_thread(engine.close)
    with pytest.raises(EngineClosed):
        await task
    with pytest.raises(EngineClosed):
        engine.add(params)
    engine.close()  # a second time does nothing


def test_a_larger_priority_goes_first_under_a_tight_budget() -> None:
    with Engine(FakePipeline(), EngineConfig(token_budget=1)) as engine:
        low = engine.add(MIXED[3])
        high = engine.add(MIXED[3], priority=5)
        finished = [output.request_id for output in drain(engine) if output.finished]
    assert finished == [high, low]


def test_steps_respect_the_token_budget(fake: FakePipeline) -> None:
    with Engine(fake, EngineConfig(token_budget=300, num_threads=1)) as engine:
        engine.generate([GenerationParams(prompt="x", width=64, height=64, seed=i) for i in range(6)])
    tokens = [
        sum(fake.spec.workload(params).step_tokens for params in batch) for batch in fake.denoised_batches
    ]
    assert max(tokens) <= 300
    assert max(len(batch) for batch in fake.denoised_batches) > 1


def test_a_request_larger_than_the_budget_runs_alone(fake: FakePipeline) -> None:
    with Engine(fake, EngineConfig(token_budget=1, num_threads=1)) as engine:
        engine.generate(MIXED)
    assert all(len(batch) == 1 for batch in fake.denoised_batches)


def test_steps_respect_the_batch_size(fake: FakePipeline) -> None:
    with Engine(fake, EngineConfig(max_batch_size=2, num_threads=1)) as engine:
        engine.generate(MIXED)
    assert max(len(batch) for batch in fake.denoised_batches) == 2


def test_requests_of_other_steps_share_none_if_it_is_asked_for(fake: FakePipeline) -> None:
    twins = [replace(MIXED[1], seed=seed, num_images=1) for seed in range(2)]
    with Engine(fake, EngineConfig(same_steps_only=True, num_threads=1)) as engine:
        engine.generate([MIXED[2], *twins])
    batches = [[params.num_inference_steps for params in batch] for batch in fake.denoised_batches]
    assert batches == [[3]] * 3 + [[5, 5]] * 5


@pytest.mark.parametrize(("order", "steps"), [("shortest", {2, 8}), ("arrival", {2, 8, 9})])
def test_a_step_is_for_the_shortest_and_as_many_as_are_worth_it(
    fake: FakePipeline, tmp_path: Path, order: str, steps: set[int]
) -> None:
    kept = tmp_path / "fit.json"
    save_fit(
        kept, CostFit((1e-4, 1e-6), (1e-9, 1e-6, 1e-12, 1e-6), (1e-4, 1e-9))
    )  # tokens cost, steps do not
    config = EngineConfig(cost_fit_path=kept, step_order=StepOrder(order), num_threads=1)
    with Engine(fake, config) as engine:
        for num_steps in (9, 8, 9, 2):
            engine.add(replace(MIXED[0], num_inference_steps=num_steps))
        engine.step()
        assert {params.num_inference_steps for params in fake.denoised_batches[0]} == steps


def test_an_idle_engine_waits_for_company(fake: FakePipeline) -> None:
    config = EngineConfig(max_wait_seconds=HANG_SECONDS, max_batch_size=2, num_threads=1)
    with Engine(fake, config) as engine:
        first = engine.add(MIXED[0])
        added: list[str] = []
        threading.Timer(0.05, lambda: added.append(engine.add(MIXED[3]))).start()
        outputs = engine.step()
        assert [output.request_id for output in outputs] == [first, *added]
        drain(engine)


def test_an_idle_engine_starts_without_company_in_the_end(fake: FakePipeline) -> None:
    with Engine(fake, EngineConfig(max_wait_seconds=0.05)) as engine:
        assert engine.generate(MIXED[0]).timings.queue_seconds >= 0.05


def test_a_request_that_waits_for_company_can_be_aborted(fake: FakePipeline) -> None:
    with Engine(fake, EngineConfig(max_wait_seconds=HANG_SECONDS)) as engine:
        waiting = engine.add(MIXED[0])
        threading.Timer(0.05, lambda: engine.abort(waiting)).start()
        [output] = engine.step()
        assert isinstance(output.error, RequestAborted)
        assert fake.denoised_batches == []


def test_a_request_that_cannot_fit_the_memory_is_refused_before_any_work() -> None:
    with (
        Engine(FakePipeline(), EngineConfig(memory_budget_bytes=1024)) as engine,
        pytest.raises(InvalidParams, match="free some memory, or use a smaller model"),
    ):
        engine.add(MIXED[0])


def test_equal_prompts_are_encoded_once(fake: FakePipeline, fake_engine: Engine) -> None:
    fake_engine.generate(MIXED)
    fake_engine.generate(MIXED)
    encoded = [params.prompt for batch in fake.encoded_batches for params in batch]
    assert sorted(encoded) == ["a blue star", "a green ring", "a red circle"]
    assert len(fake.encoded_batches) == 1, "and all of them in one batch"


def test_a_slow_decode_does_not_hold_up_the_next_step(fake: FakePipeline, fake_engine: Engine) -> None:
    may_decode = threading.Event()
    fake.on_decode = lambda _: (may_decode.wait(HANG_SECONDS), None)[1]
    quick = fake_engine.add(MIXED[0])
    slow = fake_engine.add(MIXED[1])
    steps = [output for _ in range(5) for output in fake_engine.step() if output.request_id == slow]
    assert [output.step for output in steps] == [1, 2, 3, 4, 5]
    may_decode.set()
    assert {output.request_id for output in drain(fake_engine) if output.finished} == {quick, slow}


def test_a_blocking_step_wakes_for_a_new_request(fake: FakePipeline, fake_engine: Engine) -> None:
    may_decode = threading.Event()
    fake.on_decode = lambda _: (may_decode.wait(HANG_SECONDS), None)[1]
    fake_engine.add(MIXED[0])
    fake_engine.step()
    threading.Timer(0.05, lambda: fake_engine.add(MIXED[3])).start()
    outputs = fake_engine.step()
    assert [output.step for output in outputs] == [1]
    assert not may_decode.is_set(), "it did not wait for the decode"
    may_decode.set()
    drain(fake_engine)


def test_videos_come_as_frames(fake_engine: Engine) -> None:
    params = GenerationParams(prompt="a red circle", width=64, height=64, num_frames=5, seed=1)
    result = fake_engine.generate([params])[0]
    assert [len(frames) for frames in result.frames] == [5]
    assert len(result.images) == 1


def test_guidance_and_negative_prompts_reach_the_family(fake_engine: Engine) -> None:
    def average(negative_prompt: str, guidance_scale: float) -> bytes:
        params = GenerationParams(
            prompt="a", negative_prompt=negative_prompt, guidance_scale=guidance_scale, width=64, seed=1
        )
        return fake_engine.generate([params])[0].images[0].tobytes()

    assert average("b", 3.0) != average("c", 3.0)
    assert average("b", 1.0) == average("c", 1.0), "a scale of 1 means no guidance"


def test_flux_refuses_parameters_that_it_cannot_honor(tiny_engine: Engine) -> None:
    for params in (
        GenerationParams(prompt="a star", negative_prompt="blurry"),
        GenerationParams(prompt="a star", guidance_scale=3.5),
        GenerationParams(prompt="a star", num_frames=2),
    ):
        with pytest.raises(ModelNotCapable) as refusal:
            tiny_engine.add(params)
        assert refusal.value.code == "model_not_capable"


def test_a_prompt_longer_than_the_model_reads_is_cut_with_a_warning(tiny_engine: Engine) -> None:
    long, short = tiny_engine.generate(
        [
            GenerationParams(prompt="a red circle " * 30, width=96, height=96, num_inference_steps=1),
            GenerationParams(prompt="a red circle", width=96, height=96, num_inference_steps=1),
        ]
    )
    assert "reads 32" in long.warnings[0]
    assert short.warnings == ()


def test_words_that_the_model_does_not_know_are_told(tiny_engine: Engine) -> None:
    params = GenerationParams(prompt="a Red disk and a lamp", width=96, height=96, num_inference_steps=1)
    [result] = tiny_engine.generate([params])
    [warning] = result.warnings
    assert "tiny-flux does not know 'disk' (it knows circle), 'lamp'" in warning


@pytest.mark.parametrize("side", [64, 96, 256, 272])
def test_a_size_that_the_model_has_not_learned_is_drawn_with_a_warning(
    side: int, tiny_engine: Engine
) -> None:
    result = tiny_engine.generate(
        GenerationParams(prompt="a red circle", width=side, height=128, num_inference_steps=1)
    )
    expected = () if side in (96, 256) else (tiny_engine.spec.size_warnings(result.params)[0],)
    assert result.warnings == expected


def test_the_cost_fit_is_kept_between_runs(tmp_path: Path) -> None:
    path = tmp_path / "fits" / "fake.json"
    with Engine(FakePipeline(), EngineConfig(cost_fit_path=path)) as engine:
        engine.generate(MIXED)
        workloads = [engine.spec.workload(engine.spec.resolve(MIXED[0], seed=0))]
        for _ in range(256):  # quiet steps, however busy this machine is
            engine.cost_model.observe_step(workloads, 1e-3)
        learned = engine.cost_model.settled_fit
    with Engine(FakePipeline(), EngineConfig(cost_fit_path=path)) as engine:
        assert engine.cost_model.fit == learned


@one_of_each_kind
def test_a_prompt_or_a_request_by_itself_gives_one_result(engine: Engine) -> None:
    wanted = GenerationParams(prompt="a red circle", seed=5)
    one = engine.generate(wanted)
    assert isinstance(one, GenerationResult)
    assert one.seed == 5
    assert engine.generate("a red circle").params.prompt == "a red circle"


@one_of_each_kind
def test_a_list_gives_a_list_of_requests_or_prompts(engine: Engine) -> None:
    mixed = engine.generate(["a red circle", GenerationParams(prompt="a star", seed=3)])
    assert [result.params.prompt for result in mixed] == ["a red circle", "a star"]
    assert engine.generate([]) == []


def test_a_path_is_a_models_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(bundled_models()["tiny-flux"].parent)
    with Engine.load(Path("tiny-flux"), device="cpu", dtype=torch.float32) as engine:
        assert engine.spec.name == "tiny-flux"
        assert engine.describe()["dtype"] == "float32"
    with pytest.raises(ModelNotFound, match="not a folder"):
        Engine.load(tmp_path / "tiny-flux")
