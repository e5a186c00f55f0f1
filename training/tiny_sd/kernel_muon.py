"""Muon for matrices and for the kernels of convolutions, which it takes as matrices (Jordan et al. 2024)."""

from collections.abc import Iterable

import torch
from torch import Tensor

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


class KernelMuon(torch.optim.Optimizer):
    """Momentum of which all directions count alike; steps are as large as AdamW's."""

    def __init__(
        self, parameters: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.01
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for value in group["params"]:
                if value.grad is not None:
                    self._update(value, value.grad, group)

    def _update(self, value: Tensor, gradient: Tensor, group: dict[str, float]) -> None:
        state = self.state[value]
        if not state:
            state["momentum"] = torch.zeros_like(value)
        state["momentum"].lerp_(gradient, 1 - group["momentum"])
        direction = gradient.lerp(state["momentum"], group["momentum"])
        rows, columns = len(value), value[0].numel()
        update = orthogonal(direction.reshape(rows, columns)).reshape(value.shape)
        value.mul_(1 - group["lr"] * group["weight_decay"])
        value.add_(update, alpha=-group["lr"] * 0.2 * max(rows, columns) ** 0.5)


def orthogonal(matrix: Tensor) -> Tensor:
    """Return nearly the closest matrix whose singular values are equal, by five Newton-Schulz steps."""
    a, b, c = _COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x: Tensor = (matrix.mT if is_tall else matrix).bfloat16()
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if is_tall else x).to(matrix.dtype)
