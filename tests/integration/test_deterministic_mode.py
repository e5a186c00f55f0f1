"""Images of deterministic mode are equal to the last bit, alone or in any batch (INV-1)."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.engine.outputs import GenerationResult

SIZES = (48, 64, 80, 96, 112, 128)


def make_requests(seed: int, count: int) -> list[GenerationParams]:
    draw = random.Random(seed)
    return [
        GenerationParams(
            prompt=f"a {draw.choice(['red', 'blue', 'green'])} {draw.choice(['star', 'ring', 'cross'])}",
            width=draw.choice(SIZES),
            height=draw.choice(SIZES),
            num_inference_steps=draw.randint(2, 5),
            seed=draw.randrange(1000),
            num_images=draw.choice([1, 1, 2]),
        )
        for _ in range(count)
    ]


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    config = EngineConfig(deterministic=True, token_budget=100_000, num_threads=2)
    with Engine.load("tiny-flux", device="cpu", dtype=request.param, config=config) as engine:
        yield engine


def images(engine: Engine, requests: list[GenerationParams]) -> list[list[bytes]]:
    return [[image.tobytes() for image in result.images] for result in engine.generate(requests)]


def test_a_request_is_bit_equal_alone_and_in_every_batch(engine: Engine) -> None:
    requests = make_requests(seed=1, count=5)
    alone = [images(engine, [request])[0] for request in requests]
    together = images(engine, requests)
    assert engine.stats.mean_requests_per_step > 1
    assert together == alone
    neighbors = make_requests(seed=2, count=4)
    order = random.Random(2).sample(requests, k=len(requests))
    shuffled = images(engine, neighbors + order)[len(neighbors) :]
    assert shuffled == [alone[requests.index(request)] for request in order]


def test_another_number_of_threads_changes_nothing(engine: Engine) -> None:
    requests = make_requests(seed=4, count=4)
    config = EngineConfig(deterministic=True, token_budget=700, num_threads=3)
    with Engine(engine.pipeline, config) as other:
        assert images(other, requests) == images(engine, requests)


def test_other_bounds_of_a_step_change_nothing(engine: Engine) -> None:
    requests = make_requests(seed=6, count=4)
    config = replace(engine.config, max_batch_size=3, same_steps_only=True, max_wait_seconds=0.01)
    with Engine(engine.pipeline, config) as other:
        assert images(other, requests) == images(engine, requests)


def test_steps_in_turns_change_nothing(engine: Engine) -> None:
    requests = [replace(request, num_images=3) for request in make_requests(seed=7, count=3)]
    with Engine(engine.pipeline, replace(engine.config, token_budget=1)) as one_image_at_a_time:
        assert images(one_image_at_a_time, requests) == images(engine, requests)


def test_joining_in_the_middle_changes_nothing(engine: Engine) -> None:
    requests = make_requests(seed=5, count=4)
    alone = [images(engine, [request])[0] for request in requests]
    results: dict[str, GenerationResult] = {}

    def step() -> bool:
        outputs = engine.step()
        results.update({output.request_id: output.result for output in outputs if output.result is not None})
        return bool(outputs)

    ids = []
    for request in requests:
        ids.append(engine.add(request))
        step()
    while step():
        pass
    joined = [[image.tobytes() for image in results[request_id].images] for request_id in ids]
    assert joined == alone
