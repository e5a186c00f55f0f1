"""Requests of Stable Diffusion with adapters draw what diffusers does with theirs, in steps that they share.

The reference has the adapters added to its weights, as peft's layers add them to the products.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from diffuserve.domain.errors import InvalidAdapter, NumericalFailure
from diffuserve.domain.requests.adapter_use import AdapterUse
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.engine.loading import load_model, parse_plan
from diffuserve.engine.model_runner import image_generators
from diffuserve.models.families.stable_diffusion.pipeline import StableDiffusionPipeline
from diffuserve.models.families.stable_diffusion.rows import make_rows
from diffuserve.models.layers.adapted.adapters import Uses, of_prompts
from diffuserve.models.layers.adapted.lora_pair import Components, LoraPair
from diffuserve.models.pipelines.base import DenoiseInput
from diffuserve.testing.unet_checkpoints import Kind, write_unet_checkpoint
from support.adapters import sources_of
from support.images import psnr
from support.lora_pairs import random_pair
from support.unet_reference import draw_with, load_reference

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

MIN_PSNR = 50.0  # decibel, float32 on a CPU
CONFIG = EngineConfig(token_budget=100_000, num_threads=1)
Layers = Mapping[str, Mapping[str, nn.Linear | nn.Conv2d]]

KINDS: tuple[Kind, ...] = ("sd", "xl")


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_unet_checkpoint(tmp_path_factory.mktemp(request.param) / "model", kind=request.param, seed=5)


@cache
def reference_of(folder: Path) -> Any:
    return load_reference(folder)


@cache
def loaded(folder: Path) -> StableDiffusionPipeline:
    pipeline = load_model(folder, parse_plan("cpu", "float32", None, None)).pipeline
    assert isinstance(pipeline, StableDiffusionPipeline)
    return pipeline


@pytest.fixture(
    scope="module",
    params=["sd", pytest.param("xl", marks=pytest.mark.slow)],  # most of its layers are those of the other
)
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_unet_checkpoint(tmp_path_factory.mktemp(request.param) / "model", kind=request.param, seed=5)


def layers_of(folder: Path) -> Layers:
    """Return all layers that files may change, by component."""
    reference = reference_of(folder)
    modules = {name: getattr(reference, name, None) for name in ("unet", "text_encoder", "text_encoder_2")}
    return {
        component: {
            _own_name(component, name): layer
            for name, layer in module.named_modules()
            if isinstance(layer, nn.Linear | nn.Conv2d)
        }
        for component, module in modules.items()
        if module is not None
    }


def _own_name(component: str, name: str) -> str:
    """Return the name that files have: some versions of transformers have lost a module's."""
    is_short = component != "unet" and name.startswith("encoder.")
    return f"text_model.{name}" if is_short else name


@cache
def random_adapter(folder: Path, rank: int) -> Components:
    gain = 0.25
    return {
        component: {
            name: random_pair(layer, rank, rank + index, gain)
            for index, (name, layer) in enumerate(layers.items())
        }
        for component, layers in layers_of(folder).items()
    }


def adapters_of(folder: Path) -> Mapping[str, Components]:
    return {"a": random_adapter(folder, 4), "b": {"unet": random_adapter(folder, 8)["unet"]}}


def engine_of(folder: Path, adapters: Mapping[str, Components]) -> Engine:
    sources = sources_of({name: partial(adapters.__getitem__, name) for name in adapters})
    return Engine(loaded(folder), CONFIG, adapters=sources)


@contextmanager
def adapted(folder: Path, uses: Sequence[AdapterUse], adapters: Mapping[str, Components]) -> Iterator[Any]:
    """Yield the reference with adapters in its weights."""
    layers, kept = layers_of(folder), dict[Tensor, Tensor]()
    with torch.no_grad():
        for use in uses:
            for component, pairs in adapters[use.name].items():
                for name, pair in pairs.items():
                    layer = layers[component][name]
                    kept.setdefault(layer.weight, layer.weight.clone())
                    change = (pair.up.flatten(1) @ pair.down.flatten(1)).view(layer.weight.shape)
                    layer.weight += use.weight * pair.scale * change
        yield reference_of(folder)
        for weight, before in kept.items():
            weight.copy_(before)


WANTED: Sequence[tuple[AdapterUse, ...]] = (
    (),
    (AdapterUse("a", 0.7),),
    (AdapterUse("b", 1.3),),
    (AdapterUse("a", 0.5), AdapterUse("b", 0.25)),
    (),
    (AdapterUse("b", 0.4),),
)


def requests() -> list[GenerationParams]:
    return [
        GenerationParams(
            prompt="a red circle",
            negative_prompt="blurry" if index % 2 else None,
            width=96 if index == 2 else 64,
            height=64,
            num_inference_steps=2 + index % 2,
            guidance_scale=1.0 if index == 5 else 5.0,
            seed=index,
            num_images=1 + (index == 3),
            adapters=uses,
        )
        for index, uses in enumerate(WANTED)
    ]


DISTILLED: Mapping[str, tuple[str, str | None]] = {
    "LCM-LoRA": ("lcm", None),
    "Lightning": ("euler", "trailing"),
    "Turbo": ("euler_ancestral", "trailing"),
    "Hyper-SD": ("ddim", "trailing"),
}


def test_adapters_that_draw_in_four_steps_have_their_samplers_beside_other_requests(folder: Path) -> None:
    adapters = {"a": {"unet": random_adapter(folder, 4)["unet"]}}
    plain = replace(requests()[1], adapters=None)
    few = GenerationParams(
        prompt="a ring", num_inference_steps=4, guidance_scale=1.0, adapters=(AdapterUse("a"),)
    )
    distilled = [
        replace(few, seed=seed, sampler=sampler, timestep_spacing=spacing)
        for seed, (sampler, spacing) in enumerate(DISTILLED.values())
    ]
    with engine_of(folder, adapters) as engine:
        results = engine.generate([plain, *distilled])
        assert engine.stats.mean_requests_per_step > 2, "requests share steps"
    for params, result in zip([plain, *distilled], results, strict=True):
        with adapted(folder, params.adapters or (), adapters) as reference:
            [expected] = draw_with(reference, params)
        assert psnr(result.images[0], expected) >= MIN_PSNR, params


def denoise_inputs(pipeline: StableDiffusionPipeline, uses: Sequence[Uses]) -> list[DenoiseInput]:
    wanted = [
        pipeline.spec.resolve(
            GenerationParams(prompt="a ring", num_inference_steps=4, guidance_scale=5.0, seed=i), seed=0
        )
        for i in range(len(uses))
    ]
    inputs = []
    encoded = pipeline.encode(wanted, [of_prompts(own) for own in uses])
    for params, conditioning, own in zip(wanted, encoded, uses, strict=True):
        latents = pipeline.init_latents(params, conditioning, image_generators(params)).latents
        at = pipeline.schedule(params).at(1)
        inputs.append(DenoiseInput(params, conditioning, latents, at.timestep, at.input_scale, adapters=own))
    return inputs


def test_mixed_requests_draw_what_diffusers_does(folder: Path) -> None:
    adapters, batch = adapters_of(folder), requests()
    with engine_of(folder, adapters) as engine:
        results = engine.generate(batch)
        assert engine.stats.mean_requests_per_step > 2, "requests share steps"
        plain = engine.generate([replace(params, adapters=None) for params in batch])
    for params, result, without in zip(batch, results, plain, strict=True):
        with adapted(folder, params.adapters or (), adapters) as reference:
            expected = draw_with(reference, params, width=params.width, height=params.height)
        for ours, theirs, other in zip(result.images, expected, without.images, strict=True):
            assert psnr(ours, theirs) >= MIN_PSNR, params
            assert (psnr(ours, other) < 40) == bool(params.adapters)


def test_requests_without_adapters_keep_their_bits_beside_neighbors_with_them(folder: Path) -> None:
    pipeline = loaded(folder)
    own = {"unet": random_adapter(folder, 4)["unet"]}  # prompts of a batch depend on it as ever
    used: Uses = ((pipeline.place_adapter("a", own), 0.8),)
    beside = pipeline.denoise(denoise_inputs(pipeline, [(), (), used]))
    plain = pipeline.denoise(denoise_inputs(pipeline, [(), (), ()]))
    assert torch.equal(beside[0], plain[0])
    assert torch.equal(beside[1], plain[1])
    assert not torch.allclose(beside[2], plain[2], rtol=0, atol=1e-3)


def test_each_layer_has_its_adapter(small: Path) -> None:
    pipeline = loaded(small)
    [plain] = pipeline.denoise(denoise_inputs(pipeline, [()]))
    for component, layers in layers_of(small).items():
        for name, layer in layers.items():
            if is_xl_unread(small, component, name):
                continue
            adapter = pipeline.place_adapter("one", {component: {name: random_pair(layer, 4, 3, gain=1.0)}})
            [changed] = pipeline.denoise(denoise_inputs(pipeline, [((adapter, 1.0),)]))
            assert not torch.allclose(changed, plain, rtol=0, atol=1e-6), f"{component}.{name}"


def is_xl_unread(folder: Path, component: str, name: str) -> bool:
    """Return whether a layer changes nothing: the last one of SDXL's first text encoder."""
    return component == "text_encoder" and folder.parent.name.startswith("xl") and ".layers.2." in name


def test_adapters_whose_results_are_not_finite_spoil_no_neighbor(small: Path) -> None:
    huge = {
        name: LoraPair(1e30 * down, 1e30 * up)
        for name, (down, up, *_) in random_adapter(small, 4)["unet"].items()
    }
    plain, culprit, *_ = requests()
    with engine_of(small, {"a": {"unet": huge}}) as engine:
        expected = engine.generate(plain).images[0]
        healthy, failed = engine.generate([plain, culprit], return_exceptions=True)
    assert isinstance(failed, NumericalFailure)
    assert not isinstance(healthy, Exception)
    assert psnr(healthy.images[0], expected) >= MIN_PSNR


def test_prompts_are_encoded_anew_for_adapters_that_change_text_encoders_alone(folder: Path) -> None:
    adapters, texts = adapters_of(folder), list[int]()
    encoder = loaded(folder).text.encoders[0]
    hook = encoder.register_forward_pre_hook(lambda _, inputs: texts.append(len(inputs[0])))
    wanted = GenerationParams(prompt="a ring", num_inference_steps=1, guidance_scale=1.0)
    with engine_of(folder, adapters) as engine:
        for uses in ((), (AdapterUse("b"),), (AdapterUse("a"),), (AdapterUse("a", 0.5),), (AdapterUse("a"),)):
            engine.generate(replace(wanted, adapters=uses))
    hook.remove()
    assert texts == [1, 1, 1], "b changes the UNet alone; a has two weights"


def test_what_does_not_fit_is_refused_by_name(folder: Path) -> None:
    pipeline = loaded(folder)
    down, up, *_ = random_pair(pipeline.unet.conv_in, 4, 0)
    bad: Mapping[str, tuple[str, LoraPair]] = {
        "no such layer": ("conv_middle", LoraPair(down, up)),
        "do not fit": ("conv_in", LoraPair(down[..., :1], up)),
        "not finite": ("conv_in", LoraPair(torch.full_like(down, torch.nan), up)),
        "takes kernels": ("conv_in", LoraPair(down.flatten(1), up.flatten(1))),
        "takes matrices": ("time_embedding.linear_1", LoraPair(down, up)),
    }
    for words, (name, pair) in bad.items():
        with pytest.raises(InvalidAdapter, match=f"'mine': {name}.*{words}"):
            pipeline.place_adapter("mine", {"unet": {name: pair}})
    with pytest.raises(
        InvalidAdapter, match="it changes vae; this model takes adapters of its unet and text"
    ):
        pipeline.place_adapter("mine", {"vae": {}})


def test_ranks_have_the_adapters_of_their_rows(folder: Path) -> None:
    pipeline = loaded(folder)
    used: Uses = ((pipeline.place_adapter("a", random_adapter(folder, 4)), 0.8),)
    other: Uses = ((pipeline.place_adapter("b", {"unet": random_adapter(folder, 8)["unet"]}), 1.0),)
    rows = make_rows(denoise_inputs(pipeline, [used, (), other])[:3], pipeline.unet.config)
    with torch.inference_mode():
        parts = [pipeline.unet(rows.take(range(first, first + 4))) for first in (0, 4)]
        torch.testing.assert_close(torch.cat(parts)[: len(rows)], pipeline.unet(rows), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "offload", [*(pytest.param(mode, marks=pytest.mark.slow) for mode in ("text", "model")), "layers"]
)
def test_offloaded_models_draw_with_adapters(folder: Path, offload: str) -> None:
    adapter, predicted = random_adapter(folder, 4), list[Tensor]()
    for mode in (None, offload):
        pipeline = load_model(folder, parse_plan("cpu", "float32", None, mode)).pipeline
        assert isinstance(pipeline, StableDiffusionPipeline)
        used: Uses = ((pipeline.place_adapter("a", adapter), 0.8),)
        predicted += pipeline.denoise(denoise_inputs(pipeline, [used]))
    assert torch.equal(*predicted)


def test_quantized_models_keep_adapters_in_full_precision(folder: Path) -> None:
    pipeline = load_model(folder, parse_plan("cpu", "float32", "int8", None)).pipeline
    assert isinstance(pipeline, StableDiffusionPipeline)
    changes = []
    for each in (pipeline, loaded(folder)):
        used: Uses = ((each.place_adapter("a", random_adapter(folder, 4)), 0.8),)
        [plain], [changed] = (each.denoise(denoise_inputs(each, [uses])) for uses in ((), used))
        changes.append(changed - plain)
    quantized, full = changes
    assert (quantized - full).norm() < 0.1 * full.norm()


def test_files_of_kohya_and_peft_draw_alike(small: Path, tmp_path: Path) -> None:
    adapter = random_adapter(small, 4)
    names = {"unet": "lora_unet", "text_encoder_2": "lora_te2"}
    names["text_encoder"] = "lora_te1" if "text_encoder_2" in adapter else "lora_te"
    kohya, peft = dict[str, Tensor](), dict[str, Tensor]()
    for component, pairs in adapter.items():
        for name, (down, up, scale, *_) in pairs.items():
            layer = f"{names[component]}_{name.replace('.', '_')}"
            kohya |= {f"{layer}.lora_down.weight": down, f"{layer}.lora_up.weight": up}
            kohya[f"{layer}.alpha"] = torch.tensor(scale * len(down))
            peft |= {
                f"{component}.{name}.lora_A.weight": down,
                f"{component}.{name}.lora_B.weight": scale * up,
            }
    save_file(kohya, tmp_path / "kohya.safetensors")
    save_file(peft, tmp_path / "peft.safetensors")
    wanted = replace(requests()[1], adapters=(AdapterUse("a"),))
    files = {name: str(tmp_path / f"{name}.safetensors") for name in ("kohya", "peft")}
    with engine_of(small, {"a": adapter}) as engine:
        expected = engine.generate(wanted).images[0]
    with Engine.load(small, device="cpu", dtype="fp32", config=CONFIG, adapters=files) as engine:
        for name in files:
            drawn = engine.generate(replace(wanted, adapters=(AdapterUse(name),))).images[0]
            assert psnr(drawn, expected) >= MIN_PSNR


def test_deterministic_images_do_not_depend_on_the_adapters_of_neighbors(small: Path) -> None:
    adapters, config = adapters_of(small), replace(CONFIG, deterministic=True)
    sources = sources_of({name: partial(adapters.__getitem__, name) for name in adapters})
    pipeline = load_model(small, parse_plan("cpu", "float32", None, None, True)).pipeline
    with Engine(pipeline, config, adapters=sources) as engine:
        together = [result.images[0] for result in engine.generate(requests())]
        alone = [engine.generate(params).images[0] for params in requests()]
    assert [image.tobytes() for image in together] == [image.tobytes() for image in alone]
