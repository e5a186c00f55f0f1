"""A transformer's config is read as diffusers writes it, refused out of bounds, and counted in operations."""

from pathlib import Path
from typing import Any

import pytest

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.cost import Workload
from diffuserve.models.families.wan.config import WanTransformerConfig
from diffuserve.models.weights.loading import num_parameters
from support.wan_clips import CHECKPOINTS, write_checkpoint

T2V = {"num_attention_heads": 12, "num_layers": 30, "ffn_dim": 8960}  # of 1.3B


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_a_config_is_read_as_diffusers_writes_it(kind: str, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, CHECKPOINTS[kind])
    config = WanTransformerConfig.read(checkpoint.folder)
    theirs = checkpoint.theirs()
    names = set(WanTransformerConfig.__dataclass_fields__)
    assert names == {name for name in dict(theirs.config) if not name.startswith("_")}
    assert all(_as_tuple(theirs.config[name]) == getattr(config, name) for name in names)
    assert config.axes_dims == (theirs.rope.t_dim, theirs.rope.h_dim, theirs.rope.w_dim)
    assert config.num_parameters == num_parameters(theirs)


def test_defaults_are_those_of_diffusers_class() -> None:
    config = WanTransformerConfig.from_dict({})
    assert (config.dim, config.axes_dims, config.num_outputs) == (5120, (44, 42, 42), 16)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"patch_size": [2, 2, 2]}, "patch_size"),
        ({"patch_size": [1, 2]}, "patch_size"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"attention_head_dim": 15}, "attention_head_dim"),
        ({"num_layers": 10**6}, "num_layers"),
        ({"ffn_dim": "wide"}, "ffn_dim"),
        ({"eps": float("nan")}, "config"),
        ({"qk_norm": "rms_norm"}, "qk_norm"),
        ({"cross_attn_norm": False}, "cross_attn_norm"),
        ({"pos_embed_seq_len": 0}, "pos_embed_seq_len"),
        ({"image_dim": 1280}, "added_kv_proj_dim=None must be 5120"),
        ({"image_dim": 1280, "added_kv_proj_dim": 4096}, "added_kv_proj_dim=4096 must be 5120"),
        ({"added_kv_proj_dim": 5120}, "added_kv_proj_dim=5120 must be None"),
    ],
)
def test_a_config_that_the_transformer_cannot_follow_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidModel, match=message) as refused:
        WanTransformerConfig.from_dict(values, "folder/transformer/config.json")
    assert str(refused.value).startswith("folder/transformer/config.json: ")


def test_a_pass_of_the_published_model_has_the_operations_that_were_counted() -> None:
    """1.3B at 832×480 and 81 frames: 93, 198 and 3 TFLOP for weights, tokens and the prompt."""
    config, tokens = WanTransformerConfig.from_dict(T2V), 32_760
    assert config.num_parameters == pytest.approx(1.42e9, rel=0.01)
    assert 2 * config.num_parameters * tokens == pytest.approx(93e12, rel=0.01)
    assert config.pair_operations * tokens**2 == pytest.approx(198e12, rel=0.01)
    assert config.token_operations * tokens == pytest.approx(96e12, rel=0.01)


def test_memory_of_a_step_grows_with_tokens_and_bytes() -> None:
    config = WanTransformerConfig.from_dict(T2V)
    half, whole = (Workload(2, tokens, 512, 0, 50) for tokens in (16_380, 32_760))
    assert config.step_bytes(whole, 2) == 2 * config.step_bytes(half, 2)
    assert config.step_bytes(whole, 2) < config.step_bytes(whole, 4)


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
