"""Parts of transformer blocks that are one kernel each on CUDA, as custom operations of torch.

    diffuserve::norm_modulated      scale·LayerNorm(x) + shift, with the factors of each token's sequence
    diffuserve::rms_norm_modulated  scale·weight·x/RMS(x), with the scale of each token's sequence, or none
    diffuserve::add_gated           x + gate·change, with the factors of each token's sequence; the change may
                                    be weight·change/RMS(change)
    diffuserve::silu_gated          SiLU of a token's first half of channels times its second half
    diffuserve::prepare_qkv         queries and keys normalized and rotated, and with the values put in place

On CUDA they are the Triton kernels of `triton_kernels`. The formulas here say what those compute; they run
where an operation is called on a CPU. Being operations of torch's, they are counted and faked like its own.
"""

import functools
import importlib.util
import logging
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

log = logging.getLogger(__name__)

_LIBRARY = torch.library.Library("diffuserve", "DEF")
_OUT = "*, Tensor(a!) out) -> Tensor(a!)"
_SCHEMAS = (
    f"norm_modulated(Tensor x, Tensor scale, Tensor shift, Tensor owner, float eps, {_OUT}",
    f"rms_norm_modulated(Tensor x, Tensor weight, Tensor? scale, Tensor? owner, float eps, {_OUT}",
    f"add_gated(Tensor x, Tensor gate, Tensor change, Tensor owner, Tensor? weight, float eps, {_OUT}",
    f"silu_gated(Tensor both, {_OUT}",
    "prepare_qkv(Tensor qkv, Tensor norm_query, Tensor norm_key, Tensor? rotation, Tensor? places, "
    f"float eps, {_OUT}",
)


def is_fused(x: Tensor) -> bool:
    """Return whether these operations are kernels on the device of `x`, which is tried the first time.

    Compiled code gets kernels of its own.
    """
    return x.is_cuda and not torch.compiler.is_compiling() and _works_on(x.device)


def norm_modulated(
    x: Tensor, scale: Tensor, shift: Tensor, owner: Tensor, eps: float, *, out: Tensor
) -> Tensor:
    normed = F.layer_norm(x.float(), x.shape[-1:], eps=eps)
    return out.copy_(torch.addcmul(shift[owner].float(), normed, scale[owner].float()))


def rms_norm_modulated(
    x: Tensor, weight: Tensor, scale: Tensor | None, owner: Tensor | None, eps: float, *, out: Tensor
) -> Tensor:
    """Normalize by the RMS (Zhang & Sennrich 2019, arXiv:1910.07467); `scale` and `owner` come together."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps) * weight.float()
    return out.copy_(normed if scale is None else normed * scale[owner].float())


def add_gated(  # noqa: PLR0913 (an operation of torch has tensors for arguments)
    x: Tensor, gate: Tensor, change: Tensor, owner: Tensor, weight: Tensor | None, eps: float, *, out: Tensor
) -> Tensor:
    wide = change.float()
    if weight is not None:
        wide = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps) * weight.float()
    return out.copy_(torch.addcmul(x.float(), gate[owner].float(), wide))


def silu_gated(both: Tensor, *, out: Tensor) -> Tensor:
    gate, value = both.float().chunk(2, dim=-1)
    return out.copy_(F.silu(gate) * value)


def prepare_qkv(  # noqa: PLR0913 (an operation of torch has tensors for arguments)
    qkv: Tensor,
    norm_query: Tensor,
    norm_key: Tensor,
    rotation: Tensor | None,
    places: Tensor | None,
    eps: float,
    *,
    out: Tensor,
) -> Tensor:
    """Fill the rows `places` of `out`, or all of them; `qkv` may end after the keys, and may be `out`."""
    query_key = qkv[:, :2].float()
    query_key = query_key * torch.rsqrt(query_key.square().mean(dim=-1, keepdim=True) + eps)
    query_key = query_key * torch.stack([norm_query, norm_key])[:, None]
    if rotation is not None:
        turn = torch.view_as_complex(rotation)[:, None, None]
        turned = torch.view_as_complex(query_key.unflatten(-1, (-1, 2))) * turn
        query_key = torch.view_as_real(turned).flatten(-2)
    rows = slice(None) if places is None else places
    out[rows] = torch.cat([query_key.to(out.dtype), qkv[:, 2:]], dim=1)
    return out


def _on_cuda(name: str, *args: Any, **kwargs: Any) -> Tensor:
    from diffuserve.models.layers import triton_kernels

    launched: Tensor = getattr(triton_kernels, name)(*args, **kwargs)
    return launched


def _faked(*_args: Any, out: Tensor) -> Tensor:
    return out


@functools.cache
def _works_on(device: torch.device) -> bool:
    """Run a small kernel. Triton builds it with a C compiler and CUDA's library, which may be missing."""
    if importlib.util.find_spec("triton") is None:
        return False
    row = torch.ones(1, 16, device=device)
    owner = torch.zeros(1, dtype=torch.int64, device=device)
    try:
        torch.ops.diffuserve.add_gated(row, row, row, owner, None, 0.0, out=torch.empty_like(row))
    except Exception:
        log.warning(
            "Triton cannot run kernels on %s: blocks are computed by separate ones", device, exc_info=True
        )
        return False
    return True


_FORMULAS = (norm_modulated, rms_norm_modulated, add_gated, silu_gated, prepare_qkv)
for _schema, _formula in zip(_SCHEMAS, _FORMULAS, strict=True):
    _name = _LIBRARY.define(_schema)
    _LIBRARY.impl(_name, _formula, "CPU")
    _LIBRARY.impl(_name, functools.partial(_on_cuda, _formula.__name__), "CUDA")
    torch.library.register_fake(f"diffuserve::{_name}", _faked, lib=_LIBRARY)
