"""Modular pipelines of diffusers, put together of loaded components and called as other pipelines are."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final

from diffuserve.models.families.any_pipeline.reading.signature import Signature

_RESULTS: Final = ("images", "videos", "audios", "audio")
"""Names of what blocks return that is a result; the others are between steps."""


def assemble(signature: Signature, parts: Mapping[str, Any], index: Mapping[str, Any]) -> Any:
    """Return a pipeline of a class's own blocks with these components; the blocks build the others."""
    import diffusers

    kind = getattr(diffusers, signature.name)
    outputs = [name for name in _RESULTS if name in signature.outputs]
    pipe = type(kind.__name__, (kind,), {"__call__": _call_for(kind, outputs)})()
    settings = {name: index[name] for name in signature.settings if name in index}
    known = {name: part for name, part in parts.items() if name in pipe.components}
    pipe.update_components(**known, **settings)
    return pipe


def _call_for(kind: Any, outputs: Sequence[str]) -> Any:
    """Return a call whose result has the outputs as attributes, as those of other pipelines have."""

    def call(self: Any, **arguments: Any) -> SimpleNamespace:
        return SimpleNamespace(**kind.__call__(self, output=list(outputs), **arguments))

    return call
