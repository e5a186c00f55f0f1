"""Muon makes all directions of a step alike, in matrices and in kernels."""

import torch
from torch import nn

from kernel_muon import KernelMuon, orthogonal


def test_singular_values_become_nearly_equal() -> None:
    torch.manual_seed(0)
    for shape in ((24, 80), (80, 24)):
        values = torch.linalg.svdvals(
            orthogonal(torch.randn(shape) @ torch.diag(torch.rand(shape[1]) + 0.05))
        )
        assert values.min() > 0.5
        assert values.max() < 1.4


def test_a_convolution_learns_by_it_and_goes_on_from_its_saved_state() -> None:
    torch.manual_seed(0)
    layer, image = nn.Conv2d(4, 4, 3, padding=1), torch.randn(2, 4, 8, 8)
    optimizer = KernelMuon([layer.weight], lr=0.02)
    errors = []
    for _ in range(60):
        error = (layer(image) - image).square().mean()
        error.backward()
        errors.append(float(error.detach()))
        optimizer.step()
        optimizer.zero_grad()
    assert errors[-1] < 0.5 * errors[0]
    again = KernelMuon([layer.weight], lr=0.02)
    again.load_state_dict(optimizer.state_dict())
    assert torch.equal(again.state[layer.weight]["momentum"], optimizer.state[layer.weight]["momentum"])
