"""The products of joint attention, around the attention kernel. Submodules are named as in checkpoints."""

import torch
from jaxtyping import Complex64, Float
from torch import Tensor, nn

from diffuserve.models.layers.adapted.adapters import RowAdapters
from diffuserve.models.layers.joint.joint_row import RawQkv
from diffuserve.models.layers.linear import Linear


class HeadNorm(nn.Module):
    """The learned scale of an RMS norm over each head's channels."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim), requires_grad=False)


class JointAttention(nn.Module):
    """Queries, keys and values for image and text with weights of their own."""

    def __init__(self, dim: int, head_dim: int, bias: bool = True) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.to_qkv = Linear(dim, 3 * dim, bias=bias)
        self.add_qkv_proj = Linear(dim, 3 * dim, bias=bias)
        self.norm_q, self.norm_k = HeadNorm(head_dim), HeadNorm(head_dim)
        self.norm_added_q, self.norm_added_k = HeadNorm(head_dim), HeadNorm(head_dim)
        self.to_out = nn.ModuleList([Linear(dim, dim, bias=bias)])
        self.to_add_out = Linear(dim, dim, bias=bias)

    def raw_text_qkv(
        self,
        x: Float[Tensor, "text d"],
        rotation: Complex64[Tensor, "text half"] | None,
        adapters: RowAdapters | None = None,
    ) -> RawQkv:
        qkv = self.add_qkv_proj(x, adapters).unflatten(-1, (3, -1, self.head_dim))
        return RawQkv(qkv, self.norm_added_q.weight, self.norm_added_k.weight, rotation)

    def raw_image_qkv(
        self,
        x: Float[Tensor, "image d"],
        rotation: Complex64[Tensor, "image half"] | None,
        adapters: RowAdapters | None = None,
    ) -> RawQkv:
        qkv = self.to_qkv(x, adapters).unflatten(-1, (3, -1, self.head_dim))
        return RawQkv(qkv, self.norm_q.weight, self.norm_k.weight, rotation)


class SelfAttention(nn.Module):
    """Queries, keys and values of a single row; `eps` is that of the heads' norms."""

    def __init__(self, dim: int, head_dim: int, bias: bool = True, eps: float = 1e-6) -> None:
        super().__init__()
        self.head_dim, self.eps = head_dim, eps
        self.to_qkv = Linear(dim, 3 * dim, bias=bias)
        self.norm_q, self.norm_k = HeadNorm(head_dim), HeadNorm(head_dim)

    def raw_qkv(
        self,
        x: Float[Tensor, "joint d"],
        rotation: Complex64[Tensor, "joint half"] | None,
        adapters: RowAdapters | None = None,
    ) -> RawQkv:
        qkv = self.to_qkv(x, adapters).unflatten(-1, (3, -1, self.head_dim))
        return RawQkv(qkv, self.norm_q.weight, self.norm_k.weight, rotation, self.eps)
