"""Adapters of requests: each changes its own request alone, as if its weights had been those of the model."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import CLIPTextModel

from diffuserve.domain.errors import InvalidAdapter
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.loading import load_model, parse_plan
from diffuserve.engine.model_runner import image_generators
from diffuserve.models.layers.adapted.adapters import Uses, of_prompts
from diffuserve.models.layers.adapted.lora_pair import LoraPair
from diffuserve.models.layers.linear import Linear
from diffuserve.models.pipelines.base import DenoiseInput, PackedPipeline, packed
from diffuserve.testing.checkpoints import write_flux_checkpoint
from diffuserve.testing.flux2_checkpoints import write_flux2_checkpoint
from diffuserve.testing.qwen_image_checkpoints import write_qwen_image_checkpoint
from diffuserve.testing.wan_checkpoints import write_wan_checkpoint
from diffuserve.testing.z_image_checkpoints import write_z_image_checkpoint
from support.lockstep_program import striped
from support.lora_pairs import Pairs, linear_layers, random_pair, random_pairs, transformer_of

WRITERS: Mapping[str, Callable[[Path], Path]] = {
    "flux": lambda folder: write_flux_checkpoint(folder, kind="dev", seed=5),
    "flux2": lambda folder: write_flux2_checkpoint(folder, seed=5),
    "z_image": lambda folder: write_z_image_checkpoint(folder, seed=5),
    "qwen_image": lambda folder: write_qwen_image_checkpoint(folder, seed=5),
    "wan": lambda folder: write_wan_checkpoint(folder, kind="i2v", seed=5),
}
PROMPTS = ("a red circle", "a blue star", "ring ring ring", "two squares")
UNREAD = tuple(  # the text after Qwen-Image's last block
    f"transformer_blocks.1.{name}" for name in ("attn.add_q_proj", "attn.to_add_out", "txt_mlp.")
)
CONVOLUTIONS = {"transformer.patch_embedding"}  # in Wan's checkpoints: files have no pair for it
ENCODING = {"z-image"}  # its transformer reads prompts, once for all steps
TOLERANCE = 2e-4


SLOW = ("flux2", "qwen_image")  # their layers are those of the two others


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in WRITERS],
)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return WRITERS[request.param](tmp_path_factory.mktemp(request.param) / "model")


@cache
def loaded(folder: Path, deterministic: bool = False) -> PackedPipeline:
    return packed(load_model(folder, parse_plan("cpu", "float32", None, None, deterministic)).pipeline)


def merged(folder: Path, uses: Sequence[tuple[Pairs, float]]) -> Path:
    """Write a copy of a model with adapters added to its weights by diffusers' own layers."""
    target = folder.with_name("merged")
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder, target)
    transformer = transformer_of(folder)
    kept = {name: tensor.clone() for name, tensor in transformer.state_dict().items()}
    layers = linear_layers(folder)
    with torch.no_grad():
        for pairs, weight in uses:
            for name, pair in pairs.items():
                layers[name].weight += weight * pair.scale * pair.up @ pair.down
    transformer.save_pretrained(target / "transformer")
    transformer.load_state_dict(kept)
    return target


def denoise_inputs(
    pipeline: PackedPipeline, uses: Sequence[Uses], sizes: Sequence[tuple[int, int]]
) -> list[DenoiseInput]:
    wanted = [
        pipeline.spec.resolve(replace(_request(pipeline.spec, prompt, *size), seed=i), seed=0)
        for i, (prompt, size) in enumerate(zip(PROMPTS, sizes, strict=False))
    ]
    inputs, uses = [], uses[: len(wanted)]
    encoded = pipeline.encode(wanted, [of_prompts(own) for own in uses])
    for params, conditioning, own in zip(wanted, encoded, uses, strict=True):
        initial = pipeline.init_latents(params, conditioning, image_generators(params))
        at = pipeline.schedule(params).timesteps[1]
        inputs.append(DenoiseInput(params, conditioning, initial.latents, at, 1.0, initial.guides, own))
    return inputs


def _request(spec: ModelSpec, prompt: str, width: int, height: int) -> GenerationParams:
    own = GenerationParams(prompt=prompt, width=width, height=height, num_inference_steps=4)
    if spec.family != "wan":
        return own
    return replace(own, num_frames=5, image=striped(width, height, "RGB"))


def walked_layers(folder: Path) -> Iterator[tuple[str, str, nn.Linear]]:
    """Yield the layers that take adapters: their component, their name in files, and diffusers' layer."""
    for name, layer in linear_layers(folder).items():
        yield "transformer", name, layer
    if loaded(folder).spec.family == "flux":
        clip = CLIPTextModel.from_pretrained(
            folder / "text_encoder", local_files_only=True, trust_remote_code=False
        )
        for name, layer in clip.named_modules():
            if isinstance(layer, nn.Linear):
                yield "text_encoder", f"text_model.{name.removeprefix('text_model.')}", layer


def named_layers(pipeline: PackedPipeline) -> set[str]:
    """Return the names of all layers that may have adapters."""
    layers = [layer for component in pipeline.components() for layer in component.module.modules()]
    return {layer.name for layer in layers if isinstance(layer, Linear) and layer.name}


SIZES = ((64, 64), (64, 96), (64, 64), (96, 64))


def test_a_mixed_step_predicts_what_merged_weights_do(folder: Path) -> None:
    pipeline = loaded(folder)
    pairs = {"a": random_pairs(folder, 4, 10), "b": random_pairs(folder, 8, 99)}
    adapters = {name: pipeline.place_adapter(name, {"transformer": each}) for name, each in pairs.items()}
    wanted: list[tuple[tuple[str, float], ...]] = [
        (),
        (("a", 0.7),),
        (("b", 1.3),),
        (("a", 0.5), ("b", 0.25)),
    ]
    uses = [tuple((adapters[name], weight) for name, weight in each) for each in wanted]
    mixed = pipeline.denoise(denoise_inputs(pipeline, uses, SIZES))
    plain = pipeline.denoise(denoise_inputs(pipeline, [()] * 4, SIZES))
    torch.testing.assert_close(mixed[0], plain[0], rtol=0, atol=TOLERANCE)
    for index, names in enumerate(wanted):
        weights = merged(folder, [(pairs[name], weight) for name, weight in names])
        reference = packed(load_model(weights, parse_plan("cpu", "float32", None, None)).pipeline)
        [alone] = reference.denoise(denoise_inputs(reference, [()] * 4, SIZES)[index : index + 1])
        error = (mixed[index] - alone).abs().max() / alone.abs().max()
        assert error < TOLERANCE
        assert not names or (mixed[index] - plain[index]).abs().max() > 100 * TOLERANCE


@pytest.mark.parametrize("mode", ["model", "layers"])
def test_adapters_stay_on_the_device_where_weights_do_not(folder: Path, mode: str) -> None:
    pairs, predicted = {"transformer": random_pairs(folder, 4, 10)}, []
    for offload in (None, mode):
        pipeline = packed(load_model(folder, parse_plan("cpu", "float32", None, offload)).pipeline)
        used: Uses = ((pipeline.place_adapter("a", pairs), 0.7),)
        predicted.append(pipeline.denoise(denoise_inputs(pipeline, [used, ()], SIZES[:2])))
    for resident, offloaded in zip(*predicted, strict=True):
        assert torch.equal(resident, offloaded)


@pytest.mark.parametrize(
    "quantization", ["int4", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("int8", "fp8"))]
)
def test_quantized_models_keep_adapters_in_full_precision(folder: Path, quantization: str) -> None:
    pipeline = packed(load_model(folder, parse_plan("cpu", "float32", quantization, None)).pipeline)
    adapter = pipeline.place_adapter("a", {"transformer": random_pairs(folder, 4, 10)})
    used: Uses = ((adapter, 0.7),)
    assert {delta.up.dtype for layer in adapter.deltas.values() for delta in layer} == {torch.float32}
    plain, adapted = (pipeline.denoise(denoise_inputs(pipeline, [uses], SIZES[:1]))[0] for uses in ((), used))
    assert (adapted - plain).abs().max() > 100 * TOLERANCE


def test_each_linear_layer_has_its_adapter(folder: Path) -> None:
    pipeline, adapted = loaded(folder), set[str]()
    [without] = denoise_inputs(pipeline, [()], SIZES[:1])
    [plain] = pipeline.denoise([without])
    for component, name, layer in walked_layers(folder):
        adapter = pipeline.place_adapter("one", {component: {name: random_pair(layer, 4, 3, gain=1.0)}})
        used: Uses = ((adapter, 1.0),)
        encodes = component != "transformer" or pipeline.spec.family in ENCODING
        inputs = denoise_inputs(pipeline, [used], SIZES[:1]) if encodes else [replace(without, adapters=used)]
        [changed] = pipeline.denoise(inputs)
        is_read = not (pipeline.spec.family == "qwen image" and name.startswith(UNREAD))
        assert torch.allclose(changed, plain, rtol=0, atol=1e-6) is not is_read, name
        adapted.update(adapter.deltas)
    assert named_layers(pipeline) - adapted <= CONVOLUTIONS


def test_requests_without_adapters_keep_their_bits_beside_neighbors_with_them(folder: Path) -> None:
    pipeline = loaded(folder, deterministic=True)
    adapter = pipeline.place_adapter("a", {"transformer": random_pairs(folder, 4, 10)})
    used: Uses = ((adapter, 0.8),)
    beside = pipeline.denoise(denoise_inputs(pipeline, [(), used, (), used], SIZES))
    for index, own in enumerate([(), used, (), used]):
        [alone] = pipeline.denoise(denoise_inputs(pipeline, [(), used, (), used], SIZES)[index : index + 1])
        assert torch.equal(beside[index], alone), own


def test_foreign_layers_and_shapes_are_refused_by_name(folder: Path) -> None:
    pipeline = loaded(folder)
    name, layer = next(iter(linear_layers(folder).items()))
    down, up, *_ = random_pair(layer, 4, 0)
    bad: dict[str, tuple[str, LoraPair]] = {
        "no such layer": ("mid_block.conv", LoraPair(down, up)),
        "do not fit": (name, LoraPair(down[:, 1:], up)),
        "not finite": (name, LoraPair(down, torch.full_like(up, torch.nan))),
        "takes matrices": (name, LoraPair(down[..., None], up)),
    }
    for words, (layer_name, pair) in bad.items():
        with pytest.raises(InvalidAdapter, match=words) as raised:
            pipeline.place_adapter("mine", {"transformer": {layer_name: pair}})
        assert layer_name in str(raised.value)
        assert "mine" in str(raised.value)
    with pytest.raises(InvalidAdapter, match="image_encoder"):
        pipeline.place_adapter("mine", {"image_encoder": {}})
