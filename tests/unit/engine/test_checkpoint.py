"""Checkpoints are taken between steps by whoever asks, and damaged or foreign ones are refused."""

import asyncio
import dataclasses
import json
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from diffuserve.domain.errors import CheckpointUnusable, NoCheckpoint
from diffuserve.domain.jobs.checkpoint import HEADER_BYTES
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.engine.outputs import GenerationResult
from diffuserve.engine.requests.checkpoint import Checkpoint, max_file_bytes
from diffuserve.engine.requests.checkpoint_file import read_checkpoint, write_checkpoint
from diffuserve.testing.fake_pipeline import FakePipeline

PARAMS = GenerationParams(prompt="a cloud", seed=1, num_inference_steps=5)


def checkpoint_after(engine: Engine, params: GenerationParams, step: int) -> Checkpoint:
    """Run a request up to a step, keep it and abort it."""
    request_id = engine.add(params)
    while not any(output.step == step for output in engine.step()):
        pass
    taken = engine.checkpoint(request_id)
    engine.abort(request_id)
    engine.step()
    return taken


def finish(engine: Engine, request_id: str) -> GenerationResult:
    while outputs := engine.step():
        for output in outputs:
            assert output.error is None
            if output.request_id == request_id and output.result is not None:
                return output.result
    raise AssertionError("it never finished")


def pixels(result: GenerationResult) -> list[bytes]:
    return [image.tobytes() for image in result.images]


def other(**values: object) -> Engine:
    """Return an engine whose pipeline is like `fake_engine`'s, but for these values."""
    spec = dataclasses.replace(FakePipeline().spec, **values)  # type: ignore[arg-type]
    return Engine(FakePipeline(spec=spec), EngineConfig(token_budget=10_000))


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_only_the_steps_that_are_left_are_done(fake_engine: Engine, step: int) -> None:
    taken = checkpoint_after(fake_engine, PARAMS, step)
    expected = pixels(fake_engine.generate(PARAMS))
    with other() as engine:
        request_id = engine.add(PARAMS, resume=taken)
        assert pixels(finish(engine, request_id)) == expected
        assert engine.stats.num_steps == 5 - step


def test_a_request_that_is_being_decoded_is_only_decoded_again(fake: FakePipeline) -> None:
    may_decode = threading.Event()

    def pause(_: object) -> None:
        may_decode.wait(60)

    fake.on_decode = pause
    with Engine(fake, EngineConfig(token_budget=10_000)) as engine:
        request_id = engine.add(PARAMS)
        for _ in range(5):
            engine.step()
        taken = engine.checkpoint(request_id)
        may_decode.set()
        expected = pixels(finish(engine, request_id))
    assert taken.is_denoised
    with other() as engine:
        assert pixels(finish(engine, engine.add(PARAMS, resume=taken))) == expected
        assert engine.stats.num_steps == 0


async def test_any_thread_may_ask_while_another_one_steps(fake: FakePipeline) -> None:
    """The step under way is finished first, and the request goes on after it."""
    under_way, may_go_on = threading.Event(), threading.Event()

    def pause(batch: object) -> None:
        if len(fake.denoised_batches) == 3:
            under_way.set()
            may_go_on.wait(60)

    fake.on_denoise = pause
    with Engine(fake, EngineConfig(token_budget=10_000)) as engine:
        drawing = asyncio.create_task(engine.submit(PARAMS))
        await asyncio.to_thread(under_way.wait, 60)
        (request_id,) = engine._inbox.unfinished
        asking = asyncio.create_task(asyncio.to_thread(engine.checkpoint, request_id))
        await asyncio.sleep(0)
        assert not asking.done()
        may_go_on.set()
        taken = await asking
        expected = pixels(await drawing)
    assert taken.step >= 3
    with other() as engine:
        assert pixels(finish(engine, engine.add(PARAMS, resume=taken))) == expected


def test_a_request_without_a_step_has_no_checkpoint(fake_engine: Engine) -> None:
    request_id = fake_engine.add(PARAMS)
    with pytest.raises(NoCheckpoint, match="no step"):
        fake_engine.checkpoint(request_id)
    finish(fake_engine, request_id)
    with pytest.raises(NoCheckpoint, match="has ended"):
        fake_engine.checkpoint(request_id)


def test_latents_that_are_not_finite_are_not_kept(fake: FakePipeline) -> None:
    fake.poison = lambda _params, prediction: prediction * torch.nan
    with Engine(fake) as engine, pytest.raises(NoCheckpoint, match="not finite"):
        checkpoint_after(engine, PARAMS, 1)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 2},
        {"prompt": "another"},
        {"num_inference_steps": 6},
        {"guidance_scale": 1.5},
        {"width": 32},
        {"num_images": 2},
    ],
)
def test_a_checkpoint_of_another_request_is_refused(fake_engine: Engine, change: dict[str, object]) -> None:
    taken = checkpoint_after(fake_engine, PARAMS, 2)
    changed = dataclasses.replace(PARAMS, **change)  # type: ignore[arg-type]
    with pytest.raises(CheckpointUnusable, match="request"):
        fake_engine.add(changed, resume=taken)


def test_a_checkpoint_of_other_weights_is_refused_with_both_hashes(fake: FakePipeline) -> None:
    with Engine(fake, read_weights_hash=lambda: "a" * 64) as engine:
        taken = checkpoint_after(engine, PARAMS, 2)
    mismatch = f"weights '{'a' * 64}' instead of '{'b' * 64}'"
    with (
        Engine(fake, read_weights_hash=lambda: "b" * 64) as engine,
        pytest.raises(CheckpointUnusable, match=mismatch),
    ):
        engine.add(PARAMS, resume=taken)


def test_a_checkpoint_of_another_schedule_is_refused(fake_engine: Engine) -> None:
    taken = checkpoint_after(fake_engine, PARAMS, 2)
    shifted = dataclasses.replace(taken.schedule, timesteps=tuple(t / 2 for t in taken.schedule.timesteps))
    with pytest.raises(CheckpointUnusable, match="schedule"):
        fake_engine.add(PARAMS, resume=dataclasses.replace(taken, schedule=shifted))


def latents_of(taken: Checkpoint) -> torch.Tensor:
    assert taken.progress.latents is not None
    return taken.progress.latents


CHANGES: dict[str, Callable[[Checkpoint], dict[str, object]]] = {
    "shape": lambda taken: {"latents": latents_of(taken)[..., :-1]},
    "whole numbers": lambda taken: {"latents": latents_of(taken).int()},
    "not finite": lambda taken: {"latents": latents_of(taken) * torch.inf},
    "memory": lambda taken: {"memory": (torch.zeros(3),)},
    "guides": lambda taken: {"guides": (torch.zeros(7),)},
    "step 0": lambda _: {"step": 0},
    "too far": lambda _: {"step": 6},
    "no generator": lambda _: {"generators": ()},
    "generator": lambda _: {"generators": (torch.zeros(9, dtype=torch.uint8),)},
    "generator's dtype": lambda _: {"generators": (torch.zeros(5056),)},
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_state_that_the_request_cannot_have_is_refused(fake_engine: Engine, what: str) -> None:
    taken = checkpoint_after(fake_engine, PARAMS, 2)
    changed = dataclasses.replace(taken.progress, **CHANGES[what](taken))  # type: ignore[arg-type]
    with pytest.raises(CheckpointUnusable):
        fake_engine.add(PARAMS, resume=dataclasses.replace(taken, progress=changed))
    fake_engine.generate(PARAMS)  # it starts anew


@pytest.fixture
def written(fake_engine: Engine, tmp_path: Path) -> tuple[Path, int]:
    taken, path = checkpoint_after(fake_engine, PARAMS, 2), tmp_path / "c.safetensors"
    most = max_file_bytes(fake_engine.pipeline, fake_engine.spec.resolve(PARAMS, seed=0))
    write_checkpoint(path, taken, most)
    assert read_checkpoint(path, most).identity == taken.identity
    return path, most


def with_header(content: bytes, change: Callable[[dict[str, object]], None]) -> bytes:
    """Return a file whose header was changed by somebody who leaves out the checksum."""
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    del header["__metadata__"]["crc32"]
    change(header)
    changed = json.dumps(header).encode()
    return struct.pack("<Q", len(changed)) + changed + content[8 + length :]


def set_text(name: str, value: str) -> Callable[[bytes], bytes]:
    return lambda content: with_header(content, lambda header: header["__metadata__"].update({name: value}))  # type: ignore[attr-defined]


def huge_shape(header: dict[str, object]) -> None:
    header["latents"]["shape"] = [2**40]  # type: ignore[index]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda content: content[:-5],
    "longer": lambda content: content + bytes(9),
    "one bit of a tensor": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "empty": lambda _: b"",
    "text": lambda _: b"this is no checkpoint",
    "pickle": lambda _: b"\x80\x04\x95" + bytes(100),
    "endless header": lambda content: struct.pack("<Q", 2**62) + content[8:],
    "long header": lambda content: struct.pack("<Q", HEADER_BYTES + 1) + content[8:],
    "other version": set_text("format", "0"),
    "step of another type": set_text("numbers", '{"step": 2.5, "start": 0, "init_scale": 1.0}'),
    "no step": set_text("numbers", "{}"),
    "no JSON": set_text("timings", "{"),
    "timings": set_text("timings", '{"device_seconds": -1}'),
    "huge shape": lambda content: with_header(content, huge_shape),
    "no latents": lambda content: with_header(content, lambda header: header.pop("latents")),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_or_hostile_file_is_refused(written: tuple[Path, int], how: str) -> None:
    path, most = written
    path.write_bytes(DAMAGES[how](path.read_bytes()))
    with pytest.raises(CheckpointUnusable, match="checkpoint"):
        read_checkpoint(path, most)


def test_a_file_beyond_its_predicted_size_is_neither_read_nor_written(
    written: tuple[Path, int], fake_engine: Engine
) -> None:
    path, _ = written
    with pytest.raises(CheckpointUnusable, match="at most 100 are possible"):
        read_checkpoint(path, 100)
    taken = checkpoint_after(fake_engine, PARAMS, 2)
    with pytest.raises(NoCheckpoint, match="100 were predicted"):
        write_checkpoint(path, taken, 100)
