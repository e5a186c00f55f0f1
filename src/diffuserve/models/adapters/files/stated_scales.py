"""How strongly an adapter's layers count, where the file's header says so. Importing this loads no torch.

Files of diffusers keep peft's configuration in the metadata: alpha and rank, and others for some layers.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from diffuserve.domain.errors import InvalidAdapter
from diffuserve.models.checkpoint_files.checkpoint_file import CheckpointFile

_KEY: Final = "lora_adapter_metadata"
_MAX_TEXT = 2**20


@dataclass(frozen=True)
class StatedScale:
    """Alpha of a component's layers: one for all, and others by the ends of layers' names.

    The scale is alpha by rank, or by the rank's root (rsLoRA, Kalajdzievski 2023, arXiv:2312.03732).
    """

    alpha: float
    patterns: Mapping[str, float] = field(default_factory=dict)
    by_root: bool = False

    def of(self, layer: str, rank: int) -> float:
        """Return the scale of a layer with this rank."""
        ends = (alpha for end, alpha in self.patterns.items() if f".{layer}".endswith(f".{end}"))
        alpha = next(ends, self.alpha)
        return alpha / (math.sqrt(rank) if self.by_root else rank)


def stated_scales(file: CheckpointFile) -> dict[str, StatedScale]:
    """Return the stated scales by component; none for most files. Raise `InvalidAdapter`."""
    text = file.metadata.get(_KEY)
    if text is None:
        return {}
    stated = _parsed(file, text)
    endings = (key.removesuffix(".lora_alpha") for key in stated if key.endswith(".lora_alpha"))
    return {component: _stated(file, component, stated) for component in endings if "." not in component}


def _parsed(file: CheckpointFile, text: str) -> dict[str, Any]:
    try:
        stated = json.loads(text) if len(text) <= _MAX_TEXT else None
    except (ValueError, RecursionError):
        stated = None
    if not isinstance(stated, dict):
        raise InvalidAdapter(
            f"{file.path}: {_KEY} of its header is no JSON object of at most {_MAX_TEXT:,} bytes"
        )
    return stated


def _stated(file: CheckpointFile, component: str, stated: Mapping[str, Any]) -> StatedScale:
    if stated.get(f"{component}.use_dora"):
        raise InvalidAdapter(
            f"{file.path}: {component}.use_dora: DoRA cannot be applied; merge it into its model"
        )
    patterns = stated.get(f"{component}.alpha_pattern") or {}
    if not isinstance(patterns, dict):
        raise InvalidAdapter(f"{file.path}: {component}.alpha_pattern of its header is no object")
    return StatedScale(
        _number(file, f"{component}.lora_alpha", stated[f"{component}.lora_alpha"]),
        {
            end: _number(file, f"{component}.alpha_pattern {end[:80]}", value)
            for end, value in patterns.items()
        },
        by_root=bool(stated.get(f"{component}.use_rslora")),
    )


def _number(file: CheckpointFile, name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _MAX_ALPHA:
        raise InvalidAdapter(f"{file.path}: {name} of its header is {str(value)[:40]}, which is no alpha")
    return float(value)


_MAX_ALPHA = 1e6
