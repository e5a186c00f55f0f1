"""Weights of image encoders, whose names transformers writes with and without a prefix."""

from pathlib import Path

from torch import nn

from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import Placement, load_weights, tensor_names

_PREFIX = "vision_model."
_PROJECTION = "visual_projection."  # stands beside the vision model
_BUFFERS = ("embeddings.position_ids",)  # in older checkpoints


def load_vision_weights(
    module: nn.Module, files: list[Path], plan: LoadPlan, unused: tuple[str, ...] = ()
) -> None:
    """Fill an encoder that was built on the meta device; leave out what begins with one of `unused`.

    Raise `InvalidModel` for tensors that are missing, unexpected or of another shape.
    """
    prefix = _PREFIX if any(name.startswith(_PREFIX) for name in tensor_names(files)) else ""
    placements = {
        name if name.startswith(_PROJECTION) else f"{prefix}{name}": Placement(name)
        for name, _ in module.named_parameters()
    }
    ignored = (*_BUFFERS, *unused)
    load_weights(module, files, placements, plan, (*ignored, *(f"{prefix}{name}" for name in ignored)))
    module.eval()
