"""Qwen's and Mistral's language models beside transformers', on random weights and prompts."""

import json
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.quantization import Quantization
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.models.layers.linear import Linear
from diffuserve.models.layers.quantized.quantized_linear import QuantizedLinear
from diffuserve.models.offload.components import place
from diffuserve.models.offload.copier import SyncCopier
from diffuserve.models.text.quantized_layers import QWEN_LAYERS
from diffuserve.models.text.qwen import PackedPrompts, QwenModel, load_qwen
from diffuserve.models.text.qwen_config import QwenConfig
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.parallel.ranks import TensorRanks
from support.pretend_cuda import pretend_cuda

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
    ranks = options.pop("ranks", None)
    plan = LoadPlan(options.pop("device", CPU), options.pop("dtype", torch.float32), **options)
    config = QwenConfig.read(folder, "text_encoder")
    kernel = choose_kernel(plan.device, plan.chosen_dtype)
    return load_qwen(config, folder.weights("text_encoder"), plan, kernel, states, ranks)


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


def renamed(file: Path, names: Callable[[str], str]) -> None:
    tensors = {names(name): tensor for name, tensor in load_file(file).items()}
    save_file(tensors, file)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("qwen2_5_vl", lambda name: re.sub(r"^model\.(language_model\.|(?=visual))", "", name)),
        ("qwen2_5_vl", lambda name: name.replace("language_model.", "")),
        ("mistral", lambda name: f"language_model.{name}"),
        ("mistral", lambda name: name.replace("model.", "model.language_model.")),
    ],
)
@torch.inference_mode()
def test_names_of_other_checkpoints_are_read(kind: str, names: Callable[[str], str], tmp_path: Path) -> None:
    folder, prompts = write(make_reference(kind), tmp_path), PackedPrompts.of(make_prompts(), CPU)
    [expected] = load(folder)(prompts)
    renamed(tmp_path / "text_encoder" / "model.safetensors", names)
    assert torch.equal(load(folder)(prompts)[0], expected)


class ThreadRank(TensorRanks):
    """One of two ranks, each of which runs in a thread."""

    def __init__(self, index: int, parts: list[Tensor], barrier: threading.Barrier) -> None:
        self.index, self.size, self._parts, self._barrier = index, 2, parts, barrier

    def add_up(self, part: Tensor) -> Tensor:
        return self._of_both(part, lambda parts: parts[0] + parts[1])

    def gather(self, part: Tensor) -> Tensor:
        return self._of_both(part, lambda parts: torch.cat(parts, dim=-1))

    def _of_both(self, part: Tensor, join: Callable[[list[Tensor]], Tensor]) -> Tensor:
        self._parts[self.index] = part
        self._barrier.wait()
        joined = join(self._parts)
        self._barrier.wait()
        return joined


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_that_share_the_weights_encode_together(kind: str, tmp_path: Path) -> None:
    folder, prompts = write(make_reference(kind), tmp_path), PackedPrompts.of(make_prompts(), CPU)
    whole = load(folder, (1, -1))
    parts, barrier = [torch.empty(0)] * 2, threading.Barrier(2, timeout=20)
    shares = [load(folder, (1, -1), ranks=ThreadRank(rank, parts, barrier)) for rank in range(2)]
    with ThreadPoolExecutor(2) as threads:
        results = list(threads.map(lambda model: model(prompts), shares))
    for ours, expected in zip(results[0] + results[1], 2 * whole(prompts), strict=True):
        check(ours, expected)
    sizes = [sum(each.numel() for each in model.parameters()) for model in (whole, shares[0])]
    assert sizes[1] < 0.52 * sizes[0]


@torch.inference_mode()
def test_all_products_are_quantized(tmp_path: Path) -> None:
    folder, prompts = write(make_reference("qwen2_5_vl"), tmp_path), PackedPrompts.of(make_prompts(), CPU)
    [exact] = load(folder)(prompts)
    model = load(folder, quantization=Quantization.INT8)
    products = [layer for layer in model.modules() if isinstance(layer, Linear)]
    assert all(isinstance(layer, QuantizedLinear) for layer in products)
    assert len(products) == 6 * LAYERS
    error = (model(prompts)[0] - exact).square().mean().sqrt()
    assert error < 0.02 * exact.square().mean().sqrt()
    names = [name for name in load_file(folder.weights("text_encoder")[0]) if "_proj.weight" in name]
    kinds = {QWEN_LAYERS.kind_of(name.removesuffix(".weight"), Quantization.FP8) for name in names}
    assert Quantization.INT8 in kinds


@torch.inference_mode()
def test_layers_pass_through_a_device_one_after_another(tmp_path: Path) -> None:
    folder, prompts = write(make_reference("qwen3"), tmp_path), make_prompts()
    [expected] = load(folder)(PackedPrompts.of(prompts, CPU))
    with pretend_cuda():
        cuda = torch.device("cuda:0")
        model = load(folder, device=cuda, stay_on_host=True)
        residency = place([model.component], Offload.LAYERS, cuda, SyncCopier())
        [states] = model(PackedPrompts.of(prompts, cuda))
        check(states.cpu(), expected)
    assert 0 < residency.device_bytes < residency.host_bytes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": 3}, "num_attention_heads=4 must be a multiple of num_key_value_heads=3"),
        ({"head_dim": None, "hidden_size": 36}, "hidden_size=36 must be a multiple of 2 × num_attention"),
        ({"rope_parameters": {"rope_type": "yarn"}}, r"rope_parameters\.rope_type='yarn'"),
        ({"rope_scaling": {"mrope_section": [1, 1, 1]}}, r"mrope_section=\[1, 1, 1\] must sum to 6"),
        ({"model_type": "llama"}, "model_type='llama'"),
        ({"vocab_size": 1 << 40}, "vocab_size="),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"use_sliding_window": True}, "use_sliding_window=True"),
        ({"sliding_window": 512}, "sliding_window=512"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    values = SHAPE | {"model_type": "qwen3", "head_dim": 12} | changes
    with pytest.raises(InvalidModel, match=f"origin: {message}"):
        QwenConfig.from_dict(values, "origin")


@pytest.mark.parametrize("states", [(5,), (-6,), (1, 9)])
def test_states_of_layers_that_are_not_there_are_refused(states: tuple[int, ...], tmp_path: Path) -> None:
    folder = write(make_reference("qwen3"), tmp_path)
    with pytest.raises(InvalidModel, match=r"text_encoder: num_hidden_layers=4, but states .* are read"):
        load(folder, states)


def test_a_file_without_one_table_of_tokens_is_refused(tmp_path: Path) -> None:
    folder = write(make_reference("qwen3"), tmp_path)
    renamed(tmp_path / "text_encoder" / "model.safetensors", lambda name: name.replace("embed_tokens", "wte"))
    with pytest.raises(InvalidModel, match=r"has 0 tensors embed_tokens\.weight"):
        load(folder)
