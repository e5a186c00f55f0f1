"""CLIP's and T5's encoders beside transformers', on random weights and ids."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.text.clip import ClipTextEncoder, load_clip
from diffuserve.models.text.clip_config import ClipConfig
from diffuserve.models.text.t5 import T5Encoder, load_t5
from diffuserve.models.text.t5_config import T5Config, Umt5Config
from diffuserve.models.weights.load_plan import LoadPlan

CPU = torch.device("cpu")
VOCAB = 50
CLIP: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 16,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
T5: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 6,
    "relative_attention_max_distance": 20,
    "feed_forward_proj": "gated-gelu",
}


def randomize(reference: Any, dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    for parameter in reference.parameters():
        nn.init.normal_(parameter, std=0.3)
    return reference.to(dtype).eval()


def save(tensors: dict[str, Tensor], folder: Path) -> list[Path]:
    file = folder / "model.safetensors"
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, file)
    return [file]


def folder_with(config: dict[str, Any], folder: Path) -> ModelFolder:
    (folder / "text_encoder").mkdir(exist_ok=True)
    (folder / "text_encoder" / "config.json").write_text(json.dumps(config))
    return ModelFolder(folder)


def clip_reference(dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    return randomize(transformers.CLIPTextModel(transformers.CLIPTextConfig(**CLIP | changes)), dtype)


def t5_reference(dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    return randomize(transformers.T5EncoderModel(transformers.T5Config(**T5 | changes)), dtype)


def clip_like(reference: Any, folder: Path, dtype: torch.dtype = torch.float32) -> ClipTextEncoder:
    config = ClipConfig.read(folder_with(reference.config.to_dict(), folder), "text_encoder")
    return load_clip(config, save(reference.state_dict(), folder), LoadPlan(CPU, dtype))


def t5_like(reference: Any, folder: Path, dtype: torch.dtype = torch.float32) -> T5Encoder:
    tensors = {name: tensor for name, tensor in reference.state_dict().items() if "embed_tokens" not in name}
    config = T5Config.read(folder_with(reference.config.to_dict(), folder), "text_encoder")
    return load_t5(config, save(tensors, folder), LoadPlan(CPU, dtype))


def prompts(num_tokens: int) -> Tensor:
    """Ids of three prompts that end in the middle; the padding has the id of the end."""
    ids = torch.randint(2, VOCAB, (3, num_tokens), generator=torch.Generator().manual_seed(1))
    ids[:, 0] = 0
    for row, end in enumerate((3, 7, num_tokens - 1)):
        ids[row, end:] = 1
    return ids


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("changes", [{}, {"hidden_act": "gelu"}, {"eos_token_id": 2}])
@torch.inference_mode()
def test_clip_is_equal_to_the_reference(changes: dict[str, Any], dtype: torch.dtype, tmp_path: Path) -> None:
    reference = clip_reference(dtype, **changes)
    output = clip_like(reference, tmp_path, dtype)(prompts(12))
    expected = reference(prompts(12))
    assert torch.equal(output.sequence, expected.last_hidden_state)
    assert torch.equal(output.pooled, expected.pooler_output)


@pytest.mark.parametrize("prefix", ["", "text_model."])
@torch.inference_mode()
def test_clip_with_a_projection_is_equal_to_the_reference(prefix: str, tmp_path: Path) -> None:
    """Names of either form: the projection stands beside the text model."""
    config = transformers.CLIPTextConfig(**CLIP | {"hidden_act": "gelu", "projection_dim": 24})
    reference = randomize(transformers.CLIPTextModelWithProjection(config), torch.float32)
    tensors = {
        name if name.startswith("text_projection.") else prefix + name.removeprefix("text_model."): tensor
        for name, tensor in reference.state_dict().items()
    }
    read = ClipConfig.read(folder_with(config.to_dict(), tmp_path), "text_encoder")
    output = load_clip(read, save(tensors, tmp_path), LoadPlan(CPU, torch.float32), has_projection=True)(
        prompts(12)
    )
    expected = reference(prompts(12), output_hidden_states=True)
    torch.testing.assert_close(output.pooled, expected.text_embeds)  # a product of oneDNN
    assert torch.equal(output.penultimate, expected.hidden_states[-2])


def test_names_of_older_clip_checkpoints_are_read(tmp_path: Path) -> None:
    reference = clip_reference()
    tensors = {f"text_model.{name}": tensor for name, tensor in reference.state_dict().items()}
    tensors["text_model.embeddings.position_ids"] = torch.arange(16)[None]
    config = ClipConfig.read(folder_with(reference.config.to_dict(), tmp_path), "text_encoder")
    loaded = load_clip(config, save(tensors, tmp_path), LoadPlan(CPU, torch.float32))
    assert torch.equal(loaded(prompts(8)).pooled, clip_like(reference, tmp_path)(prompts(8)).pooled)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("projection", ["gated-gelu", "relu"])
@torch.inference_mode()
def test_t5_is_equal_to_the_reference(projection: str, dtype: torch.dtype, tmp_path: Path) -> None:
    reference = t5_reference(dtype, feed_forward_proj=projection)
    if dtype == torch.float16:  # `from_pretrained` keeps these so
        for name, module in reference.named_modules():
            if name.endswith(".wo"):
                module.float()
    encoder = t5_like(reference, tmp_path, dtype)
    assert torch.equal(encoder(prompts(40)), reference(prompts(40)).last_hidden_state)


def umt5_reference(dtype: torch.dtype = torch.float32) -> Any:
    reference = randomize(transformers.UMT5EncoderModel(transformers.UMT5Config(**T5)), dtype)
    if dtype == torch.float16:  # `from_pretrained` keeps these so
        for name, module in reference.named_modules():
            if name.endswith(".wo"):
                module.float()
    return reference


def umt5_like(reference: Any, folder: Path, dtype: torch.dtype = torch.float32) -> T5Encoder:
    tensors = {name: tensor for name, tensor in reference.state_dict().items() if "embed_tokens" not in name}
    config = Umt5Config.read(folder_with(reference.config.to_dict(), folder), "text_encoder")
    return load_t5(config, save(tensors, folder), LoadPlan(CPU, dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@torch.inference_mode()
def test_umt5_with_a_mask_is_equal_to_the_reference(dtype: torch.dtype, tmp_path: Path) -> None:
    reference, ids = umt5_reference(dtype), prompts(40)
    mask = torch.arange(40)[None] < torch.tensor([[4], [8], [40]])
    found = umt5_like(reference, tmp_path, dtype)(ids, mask)
    wanted = reference(ids, mask.long()).last_hidden_state
    assert torch.equal(found[mask], wanted[mask])


@torch.inference_mode()
def test_umt5_without_padding_agrees_with_a_mask(tmp_path: Path) -> None:
    encoder, ids = umt5_like(umt5_reference(), tmp_path), prompts(40)
    padded = encoder(ids[:1], torch.arange(40)[None] < 4)[:, :4]
    torch.testing.assert_close(encoder(ids[:1, :4]), padded, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(encoder(ids[:1])[:, :4], padded, atol=1e-2), "padding counts without a mask"


def test_umt5_has_defaults_of_its_own(tmp_path: Path) -> None:
    read = Umt5Config.read(folder_with({}, tmp_path), "text_encoder")
    wanted = transformers.UMT5Config()
    for field in dataclasses.fields(read):
        assert getattr(read, field.name) == getattr(wanted, field.name), field.name


def test_t5_checkpoints_may_name_their_embedding_otherwise(tmp_path: Path) -> None:
    reference = t5_reference()
    tensors = {name: tensor for name, tensor in reference.state_dict().items() if name != "shared.weight"}
    tensors["encoder.embed_tokens.weight"] = reference.shared.weight
    tensors["lm_head.weight"] = torch.zeros(VOCAB, 32)
    config = T5Config.read(folder_with(T5, tmp_path), "text_encoder")
    loaded = load_t5(config, save(tensors, tmp_path), LoadPlan(CPU, torch.float32))
    assert torch.equal(loaded(prompts(8)), t5_like(reference, tmp_path)(prompts(8)))


def test_unknown_activations_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match="hidden_act='swish'"):
        ClipConfig.read(folder_with(CLIP | {"hidden_act": "swish"}, tmp_path), "text_encoder")
    with pytest.raises(InvalidModel, match="feed_forward_proj='gated-swish'"):
        T5Config.read(folder_with(T5 | {"feed_forward_proj": "gated-swish"}, tmp_path), "text_encoder")


def test_heads_must_divide_the_width(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match="hidden_size=32 must be a multiple of num_attention_heads=5"):
        ClipConfig.read(folder_with(CLIP | {"num_attention_heads": 5}, tmp_path), "text_encoder")
