"""The channels of rotary axes in a transformer's config. Importing this file loads no torch."""

from collections.abc import Sequence

from diffuserve.domain.errors import InvalidModel


def check_axes(axes: Sequence[int], head_dim: int, origin: str) -> None:
    """Raise `InvalidModel`, which names `origin`, unless the axes are pairs that make up a head."""
    if sum(axes) != head_dim or any(axis % 2 for axis in axes):
        raise InvalidModel(
            f"{origin}: axes_dims_rope={list(axes)} must be even numbers that sum to "
            f"attention_head_dim={head_dim}"
        )
