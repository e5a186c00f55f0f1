"""True images of layouts, from signed distances."""

import math

import torch
from torch import Tensor

from layout import Layout

_EDGE = 1.3  # pixels from inside to outside of an edge


def draw(layout: Layout, width: int, height: int) -> Tensor:
    """An image `(3, height, width)` in -1…1."""
    scale = min(width, height)
    y, x = torch.meshgrid(
        (torch.arange(height) + 0.5) / scale, (torch.arange(width) + 0.5) / scale, indexing="ij"
    )
    image = torch.tensor(layout.background)[:, None, None].expand(3, height, width)
    for thing in layout.things:
        distance = signed_distance(thing.shape, (x - thing.x) / thing.radius, (y - thing.y) / thing.radius)
        cover = (0.5 - distance * thing.radius * scale / _EDGE).clamp(0, 1)
        image = torch.lerp(image, torch.tensor(thing.rgb)[:, None, None], cover)
    return image / 127.5 - 1


def signed_distance(shape: str, x: Tensor, y: Tensor) -> Tensor:
    """Return the signed distance to a shape in the unit circle; negative inside. `y` points down."""
    return _DISTANCES[shape](x, y)


def _circle(x: Tensor, y: Tensor) -> Tensor:
    return torch.hypot(x, y) - 0.95


def _square(x: Tensor, y: Tensor) -> Tensor:
    return torch.maximum(x.abs(), y.abs()) - 0.82


def _diamond(x: Tensor, y: Tensor) -> Tensor:
    return (x.abs() / 0.72 + y.abs() - 1) * 0.58


def _triangle(x: Tensor, y: Tensor) -> Tensor:
    return _polygon(x, y + 0.08, [(0.0, -0.95), (0.98, 0.8), (-0.98, 0.8)])


def _star(x: Tensor, y: Tensor) -> Tensor:
    points = []
    for i in range(10):
        reach, angle = (1.05 if i % 2 == 0 else 0.44), math.pi * i / 5
        points.append((reach * math.sin(angle), -reach * math.cos(angle) + 0.06))
    return _polygon(x, y, points)


def _ring(x: Tensor, y: Tensor) -> Tensor:
    return (torch.hypot(x, y) - 0.72).abs() - 0.23


def _cross(x: Tensor, y: Tensor) -> Tensor:
    x, y = x.abs(), y.abs()
    bar, post = torch.maximum(x - 0.92, y - 0.29), torch.maximum(x - 0.29, y - 0.92)
    return torch.minimum(bar, post)


def _heart(x: Tensor, y: Tensor) -> Tensor:
    """Two circles and a square on its corner."""
    x, y = x.abs() / 0.9, (y + 0.02) / 0.9
    lobe = torch.hypot(x - 0.48, y + 0.38) - 0.52
    tip = _polygon(x, y, [(-0.2, -0.3), (0.0, -0.6), (0.92, -0.12), (0.0, 1.0)])
    return torch.minimum(lobe, tip) * 0.9


def _moon(x: Tensor, y: Tensor) -> Tensor:
    """A disc without another one at its upper right."""
    return torch.maximum(_circle(x, y), 0.72 - torch.hypot(x - 0.44, y + 0.2))


def _polygon(x: Tensor, y: Tensor, corners: list[tuple[float, float]]) -> Tensor:
    """Return the signed distance to the nearest edge (Inigo Quilez, "2D distance functions")."""
    nearest = torch.full_like(x, math.inf)
    is_inside = torch.zeros_like(x, dtype=torch.bool)
    for (ax, ay), (bx, by) in zip(corners, corners[1:] + corners[:1], strict=True):
        ex, ey, wx, wy = bx - ax, by - ay, x - ax, y - ay
        along = ((wx * ex + wy * ey) / (ex * ex + ey * ey)).clamp(0, 1)
        nearest = torch.minimum(nearest, torch.hypot(wx - ex * along, wy - ey * along))
        crosses = ((ay > y) != (by > y)) & (x < ax + ex * (y - ay) / (ey if ey else 1.0))
        is_inside ^= crosses
    return torch.where(is_inside, -nearest, nearest)


_DISTANCES = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
    "heart": _heart,
    "ring": _ring,
    "cross": _cross,
    "diamond": _diamond,
    "moon": _moon,
}
