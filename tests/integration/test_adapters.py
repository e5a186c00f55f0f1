"""Requests with adapters draw what diffusers does with theirs, beside others with other ones or none."""

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FluxPipeline
from PIL.Image import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from diffuserve.cli.display.console import Console
from diffuserve.cli.draw.loading import load_engine
from diffuserve.domain.errors import CheckpointUnusable, InvalidParams, RequestAborted, RequestFailed
from diffuserve.domain.requests.adapter_use import AdapterUse
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.engine.loading import load_model, parse_plan
from diffuserve.engine.requests.checkpoint import Checkpoint
from diffuserve.models.adapters.sources import AdapterSources
from diffuserve.models.layers.adapted.lora_pair import Components, LoraPair
from diffuserve.protocol.config import EngineProcessConfig
from diffuserve.testing.checkpoints import write_flux_checkpoint
from support.adapters import digest_of, sources_of
from support.images import psnr
from support.lora_pairs import random_pair

MIN_PSNR = 50.0  # decibel, float32 on a CPU
CONFIG = EngineConfig(token_budget=100_000, num_threads=1)
WANTED: Mapping[str, tuple[AdapterUse, ...]] = {
    "a red circle": (),
    "a blue star": (AdapterUse("a", 0.7),),
    "ring ring": (AdapterUse("b", 1.3),),
    "two squares": (AdapterUse("a", 0.5), AdapterUse("b", 0.25)),
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = write_flux_checkpoint(tmp_path_factory.mktemp("flux"), kind="dev", seed=5)
    pipeline = FluxPipeline.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    pipeline.set_progress_bar_config(disable=True)
    pipeline.folder = folder
    return pipeline


def random_adapter(transformer: Any, rank: int, seed: int) -> dict[str, LoraPair]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: LoraPair(
            torch.randn(rank, layer.in_features, generator=generator) / layer.in_features**0.5,
            torch.randn(layer.out_features, rank, generator=generator) / rank**0.5,
            scale=0.15,
        )
        for name, layer in transformer.named_modules()
        if isinstance(layer, nn.Linear)
    }


@pytest.fixture(scope="module")
def adapters(reference: Any) -> Mapping[str, dict[str, LoraPair]]:
    sizes = {"a": 8, "b": 16}
    return {name: random_adapter(reference.transformer, rank, rank) for name, rank in sizes.items()}


class Readers:
    """Readers of adapters, which count and may wait."""

    def __init__(self, adapters: Mapping[str, dict[str, LoraPair]]) -> None:
        self.adapters, self.reads, self.may_read = adapters, list[str](), threading.Event()
        self.may_read.set()

    def of(self, name: str) -> Components:
        assert self.may_read.wait(10)
        self.reads.append(name)
        return {"transformer": self.adapters[name]}

    def sources(self) -> AdapterSources:
        sizes = {
            name: sum(pair.down.numel() + pair.up.numel() for pair in pairs.values())
            for name, pairs in self.adapters.items()
        }
        return sources_of({name: partial(self.of, name) for name in self.adapters}, sizes)


@pytest.fixture
def readers(adapters: Mapping[str, dict[str, LoraPair]]) -> Readers:
    return Readers(adapters)


def load(folder: Path, readers: Readers, config: EngineConfig = CONFIG) -> Engine:
    plan = parse_plan("cpu", "float32", None, None, config.deterministic)
    pipeline = load_model(folder, plan).pipeline
    return Engine(pipeline, config, adapters=readers.sources())


@pytest.fixture
def engine(reference: Any, readers: Readers) -> Iterator[Engine]:
    with load(reference.folder, readers) as engine:
        yield engine


def requests() -> list[GenerationParams]:
    sizes, steps = ((64, 64), (96, 64), (64, 64), (96, 96)), (4, 4, 3, 5)
    return [
        GenerationParams(
            prompt=prompt,
            width=width,
            height=height,
            num_inference_steps=count,
            guidance_scale=3.5,
            max_sequence_length=32,
            seed=i,
            adapters=uses,
        )
        for i, ((prompt, uses), (width, height), count) in enumerate(
            zip(WANTED.items(), sizes, steps, strict=True)
        )
    ]


def draw(reference: Any, params: GenerationParams, adapters: Mapping[str, dict[str, LoraPair]]) -> Any:
    """Draw with adapters added to the weights, as peft's layers add them to the products."""
    layers = dict(reference.transformer.named_modules())
    kept = {name: tensor.clone() for name, tensor in reference.transformer.state_dict().items()}
    with torch.no_grad():
        for use in params.adapters or ():
            for name, pair in adapters[use.name].items():
                layers[name].weight += use.weight * pair.scale * pair.up @ pair.down
    asked = ("prompt", "width", "height", "num_inference_steps", "guidance_scale", "max_sequence_length")
    assert params.seed is not None
    generator = torch.Generator().manual_seed(params.seed)
    image = reference(**{name: getattr(params, name) for name in asked}, generator=generator).images[0]
    reference.transformer.load_state_dict(kept)
    return image


def test_mixed_requests_draw_what_diffusers_does(
    engine: Engine, reference: Any, adapters: Mapping[str, dict[str, LoraPair]]
) -> None:
    mixed = requests()
    for params, result in zip(mixed, engine.generate(mixed), strict=True):
        assert psnr(result.images[0], draw(reference, params, adapters)) >= MIN_PSNR
        if params.adapters:
            assert psnr(result.images[0], draw(reference, params, {"a": {}, "b": {}})) < 40


def test_adapters_come_from_files(
    reference: Any, adapters: Mapping[str, dict[str, LoraPair]], tmp_path: Path, engine: Engine
) -> None:
    tensors = {}
    for layer, (down, up, scale, *_) in adapters["a"].items():
        tensors[f"transformer.{layer}.lora_A.weight"] = down.contiguous()
        tensors[f"transformer.{layer}.lora_B.weight"] = (scale * up).contiguous()
    save_file(tensors, tmp_path / "a.safetensors")
    wanted, files = requests()[1], {"a": str(tmp_path / "a.safetensors")}
    expected = engine.generate(wanted).images[0]
    of_commands = EngineProcessConfig(
        model=str(reference.folder),
        device="cpu",
        dtype="fp32",
        engine=CONFIG,
        adapter_files=files,
        prepare_models=False,
    )
    for loaded in (
        Engine.load(reference.folder, device="cpu", dtype="fp32", config=CONFIG, adapters=files),
        load_engine(of_commands, Console(stderr=True)),
    ):
        with loaded:
            assert psnr(loaded.generate(wanted).images[0], expected) >= MIN_PSNR


def test_adapters_of_text_encoders_draw_what_diffusers_does(reference: Any, tmp_path: Path) -> None:
    """Kohya's files of FLUX.1 may change CLIP, whose vector of a prompt depends on the adapter then."""
    layers = {
        name: layer for name, layer in reference.text_encoder.named_modules() if isinstance(layer, nn.Linear)
    }
    pairs = {name: random_pair(layer, 4, index) for index, (name, layer) in enumerate(layers.items())}
    tensors = dict[str, Tensor]()
    for name, (down, up, scale, *_) in pairs.items():
        stem = f"lora_te1_text_model_{name.removeprefix('text_model.').replace('.', '_')}"
        tensors |= {f"{stem}.lora_down.weight": down, f"{stem}.lora_up.weight": up}
        tensors[f"{stem}.alpha"] = torch.tensor(4 * scale)
    save_file(tensors, tmp_path / "a.safetensors")
    plain, changed = requests()[0], replace(requests()[0], adapters=(AdapterUse("a", 0.8),))
    files = {"a": str(tmp_path / "a.safetensors")}
    with Engine.load(reference.folder, device="cpu", dtype="fp32", config=CONFIG, adapters=files) as engine:
        of_plain, of_changed = (result.images[0] for result in engine.generate([plain, changed]))
    assert psnr(of_plain, draw(reference, plain, {})) >= MIN_PSNR
    kept = {name: tensor.clone() for name, tensor in reference.text_encoder.state_dict().items()}
    with torch.no_grad():
        for name, pair in pairs.items():
            layers[name].weight += 0.8 * pair.scale * pair.up @ pair.down
    assert psnr(of_changed, draw(reference, plain, {})) >= MIN_PSNR
    reference.text_encoder.load_state_dict(kept)
    assert psnr(of_plain, of_changed) < 40


def test_neighbors_do_not_wait_for_an_adapter(engine: Engine, readers: Readers) -> None:
    plain, adapted, *_ = requests()
    readers.may_read.clear()
    waiting, going = engine.add(adapted), engine.add(plain)
    ended = [output.request_id for _ in range(6) for output in _until_output(engine) if output.finished]
    assert ended == [going]
    readers.may_read.set()
    while waiting not in ended:
        ended += [output.request_id for output in engine.step() if output.finished]


def test_a_request_that_waits_for_its_adapter_can_be_stopped(engine: Engine, readers: Readers) -> None:
    readers.may_read.clear()
    waiting = engine.add(requests()[1])
    assert engine.abort(waiting)
    [output] = engine.step()
    assert isinstance(output.error, RequestAborted)
    readers.may_read.set()
    [result] = engine.generate(requests()[1:2])
    assert result.images


def test_an_adapter_that_cannot_be_used_fails_its_request_alone(reference: Any, readers: Readers) -> None:
    readers.adapters = {"a": {"x_embedder": LoraPair(torch.ones(1, 3), torch.ones(5, 1))}, "b": {}}
    with load(reference.folder, readers) as engine:
        plain, adapted = engine.generate(requests()[:2], return_exceptions=True)
    assert not isinstance(plain, Exception)
    assert isinstance(adapted, RequestFailed)
    assert "adapter 'a': x_embedder" in str(adapted)


def test_unknown_adapters_are_refused_by_name(engine: Engine) -> None:
    with pytest.raises(InvalidParams, match=r"adapters='c'.*known: a, b"):
        engine.generate(GenerationParams(prompt="a ring", adapters=(AdapterUse("c"),)))


def test_adapters_of_running_requests_stay_and_others_make_room(reference: Any, readers: Readers) -> None:
    sizes = [
        sum(pair.down.nbytes + pair.up.nbytes for pair in pairs.values())
        for pairs in readers.adapters.values()
    ]
    config = EngineConfig(token_budget=100_000, num_threads=1, adapter_bytes=max(sizes))
    with load(reference.folder, readers, config) as engine:
        _, with_a, with_b, with_both = requests()
        for params in (with_a, with_a, with_b, with_a):
            engine.generate(params)
        assert readers.reads == ["a", "b", "a"]
        with pytest.raises(InvalidParams, match=r"'a, b'.*--adapter-bytes"):
            engine.generate(with_both)


def half_done(engine: Engine, params: GenerationParams) -> tuple[Checkpoint, Image]:
    """Return the checkpoint of a request after two steps, and its image."""
    request_id, checkpoint = engine.add(params), None
    while True:
        for output in engine.step():
            if output.step == 2 and checkpoint is None:
                checkpoint = engine.checkpoint(request_id)
            if output.result is not None:
                assert checkpoint is not None
                return checkpoint, output.result.images[0]


def test_a_checkpoint_is_resumed_with_the_same_adapter_alone(reference: Any, readers: Readers) -> None:
    config, wanted = replace(CONFIG, deterministic=True), requests()[1]
    with load(reference.folder, readers, config) as engine:
        checkpoint, whole = half_done(engine, wanted)
    with load(reference.folder, readers, config) as engine:
        resumed = engine.add(wanted, resume=checkpoint)
        outputs = [engine.step() for _ in range(2)]
        while not any(output.finished for output in outputs[-1]):
            outputs.append(engine.step())
        [last] = [output for output in outputs[-1] if output.request_id == resumed]
        assert last.result is not None
        assert last.result.images[0].tobytes() == whole.tobytes(), "bit for bit"
    own = readers.sources().named["a"]
    other = AdapterSources({"a": replace(own, digest=digest_of("another file of that name"))})
    pipeline = load_model(reference.folder, parse_plan("cpu", "float32", None, None, True)).pipeline
    with Engine(pipeline, config, adapters=other) as engine, pytest.raises(CheckpointUnusable):
        engine.add(wanted, resume=checkpoint)


def _until_output(engine: Engine) -> list[Any]:
    """Return the outputs of a step; a step that would wait for the adapter alone has none."""
    if engine.num_unfinished == 1:
        time.sleep(0)
        return []
    return engine.step()
