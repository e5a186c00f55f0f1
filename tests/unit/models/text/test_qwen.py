"""Qwen's and Mistral's language models beside transformers', on random weights and prompts."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn

from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.models.text.qwen import PackedPrompts, QwenModel, load_qwen
from diffuserve.models.text.qwen_config import QwenConfig
from diffuserve.models.weights.load_plan import LoadPlan

CPU = torch.device("cpu")
VOCAB, LAYERS = 50, 4
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
MROPE = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e6}
KINDS = ("qwen3", "qwen2_5_vl", "mistral")


def make_reference(kind: str, dtype: torch.dtype = torch.float32) -> Any:
    """Return a model of transformers that has a language model of this kind."""
    torch.manual_seed(0)
    if kind == "qwen3":
        config: Any = transformers.Qwen3Config(**SHAPE, head_dim=12, rope_parameters={"rope_theta": 1e6})
        model = transformers.Qwen3ForCausalLM(config)
    elif kind == "qwen2_5_vl":
        vision = {
            "depth": 1,
            "hidden_size": 16,
            "intermediate_size": 8,
            "num_heads": 2,
            "out_hidden_size": 32,
        }
        text = SHAPE | {"rope_parameters": MROPE}
        config = transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision)
        model = transformers.Qwen2_5_VLForConditionalGeneration(config)
    else:
        config = transformers.MistralConfig(**SHAPE, head_dim=10)
        model = transformers.MistralForCausalLM(config)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.to(dtype).eval()


def write(reference: Any, folder: Path) -> ModelFolder:
    (folder / "text_encoder").mkdir()
    tensors = {name: tensor.clone() for name, tensor in reference.state_dict().items()}
    save_file(tensors, folder / "text_encoder" / "model.safetensors")
    (folder / "text_encoder" / "config.json").write_text(json.dumps(reference.config.to_dict()))
    return ModelFolder(folder)


def load(folder: ModelFolder, states: Sequence[int] = (-1,), **options: Any) -> QwenModel:
    plan = LoadPlan(CPU, options.pop("dtype", torch.float32), **options)
    config = QwenConfig.read(folder, "text_encoder")
    kernel = choose_kernel(CPU, plan.chosen_dtype)
    return load_qwen(config, folder.weights("text_encoder"), plan, kernel, states)


def make_prompts() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, VOCAB, (length,), generator=generator) for length in (7, 3, 7, 12)]


def padded(prompts: Sequence[Tensor], side: str = "right") -> tuple[Tensor, Tensor]:
    """Return the ids and the mask of prompts of twelve tokens."""
    ids, mask = torch.zeros(len(prompts), 12, dtype=torch.int64), torch.zeros(len(prompts), 12).bool()
    for row, prompt in enumerate(prompts):
        own = slice(len(prompt)) if side == "right" else slice(12 - len(prompt), 12)
        ids[row, own], mask[row, own] = prompt, True
    return ids, mask


def states_of(reference: Any, ids: Tensor, mask: Tensor, **options: Any) -> tuple[Tensor, ...]:
    output = reference(ids, attention_mask=mask.long(), output_hidden_states=True, **options)
    found: tuple[Tensor, ...] = output.hidden_states
    return found


def check(ours: Tensor, expected: Tensor) -> None:
    """States are around 10, so that this is over 110 dB."""
    torch.testing.assert_close(ours, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_states_of_packed_prompts_equal_the_reference(kind: str, tmp_path: Path) -> None:
    reference, prompts = make_reference(kind), make_prompts()
    model = load(write(reference, tmp_path), (1, 0, -2, -1))
    ids, mask = padded(prompts)
    expected = states_of(reference, ids, mask)
    found = model(PackedPrompts.of(prompts, CPU))
    for ours, index in zip(found, (1, 0, -2, -1), strict=True):
        check(ours, expected[index][mask])


@pytest.mark.parametrize("kind", ["qwen3", "mistral"])
@pytest.mark.parametrize("side", ["right", "left"])
@torch.inference_mode()
def test_padding_has_the_states_of_the_reference(kind: str, side: str, tmp_path: Path) -> None:
    reference = make_reference(kind)
    model = load(write(reference, tmp_path), (1, 3))
    ids, mask = padded(make_prompts(), side)
    places = torch.arange(12)[None].expand_as(ids)
    expected = states_of(reference, ids, mask, position_ids=places)
    for ours, index in zip(model(PackedPrompts.padded(ids, mask, CPU)), (1, 3), strict=True):
        check(ours.unflatten(0, ids.shape), expected[index])


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_bf16_is_nearer_to_exact_states_than_the_reference(kind: str, tmp_path: Path) -> None:
    reference, prompts = make_reference(kind, torch.bfloat16), make_prompts()
    model = load(write(reference, tmp_path), dtype=torch.bfloat16)
    ids, mask = padded(prompts)
    [ours] = model(PackedPrompts.of(prompts, CPU))
    theirs = states_of(reference, ids, mask)[-1][mask]
    exact = states_of(reference.float(), ids, mask)[-1][mask]
    errors = [float((each.float() - exact).square().mean().sqrt()) for each in (ours, theirs)]
    assert errors[0] < 1.2 * errors[1]


def test_layers_behind_the_last_state_are_neither_built_nor_read(tmp_path: Path) -> None:
    folder, sizes = write(make_reference("qwen3"), tmp_path), list[int]()
    model = load(folder, (1, 2), on_read=sizes.append)
    assert len(model.layers) == 2
    assert sum(sizes) == sum(parameter.nbytes for parameter in model.parameters())
    assert not any(name.startswith("norm.") for name, _ in model.named_parameters())
