"""Low-rank changes of a model begin as nothing, and are saved as the engine reads them."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from low_rank import LowRank


def test_a_change_begins_as_nothing_and_is_saved_as_what_is_added(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"attn": nn.ModuleDict({"to_q": nn.Linear(8, 6), "other": nn.Linear(8, 6)})})
    rows, layer = torch.randn(5, 8), "attn.to_q"
    before = model.get_submodule(layer)(rows)
    changes = LowRank(model, ("to_q",), rank=2)
    assert torch.equal(model.get_submodule(layer)(rows), before)
    assert [name for name, value in model.named_parameters() if value.requires_grad] == [
        "attn.to_q.down",
        "attn.to_q.up",
    ]
    for parameter in changes.parameters():
        parameter.data.copy_(torch.randn(parameter.shape).bfloat16())
    changes.save(tmp_path / "new" / "adapter.safetensors")
    saved = load_file(tmp_path / "new" / "adapter.safetensors")
    down, up = (saved[f"transformer.{layer}.lora_{which}.weight"].float() for which in "AB")
    assert torch.allclose(model.get_submodule(layer)(rows), before + rows @ down.T @ up.T, atol=1e-5)
