"""Linear layers with a low-rank change beside them, which alone is trained (Hu et al. 2021)."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn


class LowRankLinear(nn.Module):
    """A frozen linear layer, and what is added to its output."""

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, frozen.in_features) / frozen.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(frozen.out_features, rank))

    def forward(self, rows: Tensor) -> Tensor:
        added: Tensor = self.frozen(rows) + rows @ self.down.T @ self.up.T
        return added


class LowRank(nn.Module):
    """The changes of layers by the layer's name; their names as parameters have no dots."""

    def __init__(self, model: nn.Module, endings: tuple[str, ...], rank: int) -> None:
        """Freeze the model, and put changes of this rank beside its layers whose names end so."""
        super().__init__()
        model.requires_grad_(False)
        layers = [
            (name, layer)
            for name, layer in model.named_modules()
            if isinstance(layer, nn.Linear) and name.endswith(endings)
        ]
        self._layers: dict[str, LowRankLinear] = {}
        for name, layer in layers:
            self._layers[name] = changed = LowRankLinear(layer, rank)
            parent, _, child = name.rpartition(".")
            model.get_submodule(parent).register_module(child, changed)
            self.register_parameter(f"{name.replace('.', '/')}/down", changed.down)
            self.register_parameter(f"{name.replace('.', '/')}/up", changed.up)

    def save(self, path: Path) -> None:
        """Write the file as diffusers and peft do, in bf16."""
        tensors = {}
        for name, layer in self._layers.items():
            tensors[f"transformer.{name}.lora_A.weight"] = layer.down.detach()
            tensors[f"transformer.{name}.lora_B.weight"] = layer.up.detach()
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: value.bfloat16().contiguous() for name, value in tensors.items()}, path)
        path.chmod(0o644)  # written for its owner alone
