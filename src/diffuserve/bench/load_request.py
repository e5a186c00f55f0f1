"""What one request of a load asks for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from diffuserve.bench.slo import Slo


class LoadKind(StrEnum):
    """What a request asks for."""

    IMAGE = "image"
    CLIP = "clip"


@dataclass(frozen=True, kw_only=True)
class LoadRequest:
    """A request as its workload means it, whatever the server's words are.

    `width` and `height` are in pixels; without them the server chooses. `fields` are further fields by our
    names: `num_inference_steps`, `seed`, `num_images`, `num_frames`, `guidance_scale`, `adapters` and the
    like. `label` is the part of the workload that it belongs to.
    """

    label: str
    prompt: str
    kind: LoadKind = LoadKind.IMAGE
    width: int | None = None
    height: int | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    tenant: str | None = None
    priority: str | None = None
    slo: Slo | None = None

    @property
    def num_outputs(self) -> int:
        """Number of images or clips that it asks for."""
        return int(self.fields.get("num_images", 1)) if self.kind is LoadKind.IMAGE else 1
