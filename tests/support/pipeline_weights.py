"""The weights of a loaded model, whatever its family."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from diffuserve.models.pipelines.base import Pipeline


def weights(pipeline: Pipeline) -> Mapping[str, Tensor]:
    """Return the weights as torch has them; oneDNN's own order cannot be looked into."""
    return {
        f"{path}.{name}": parameter.data
        for path, module in _modules(pipeline)
        for name, parameter in module.named_parameters()
        if parameter.layout is torch.strided and not parameter.is_meta
    }


def _modules(value: object, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules of a pipeline, which are attributes of it or of its parts."""
    if isinstance(value, nn.Module):
        yield path, value
    elif path.count(".") < 3 and type(value).__module__.startswith("diffuserve."):
        for name, part in getattr(value, "__dict__", {}).items():
            yield from _modules(part, f"{path}.{name}")
