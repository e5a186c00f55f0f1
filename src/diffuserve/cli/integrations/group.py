"""`diffuserve integrations`: what Triton, TorchServe, Modal and others need to run our engine."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import typer

from diffuserve.cli.lazy import LazyCommand, lazy_group
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.extras import Extra
from diffuserve.settings import Settings

EXAMPLES = """
Examples:

  diffuserve integrations triton model-repository --model flux-schnell

  diffuserve integrations torchserve model-store --model flux-schnell

  diffuserve integrations modal images.py --model flux-schnell

  diffuserve integrations comfyui ~/ComfyUI/custom_nodes
"""

ENGINE_SETTINGS: Final = ("model", "device", "dtype", "quantization", "offload", "model_store")
"""Settings that are options of the commands."""
_WRITTEN: Final = (
    *ENGINE_SETTINGS,
    *("adapter_files", "controlnets", "image_prompter", "prompt_filter", "image_filter"),
)
"""Settings that the commands write for the engine in the other server; the environment there has the rest."""

integrations = typer.Typer(
    name="integrations",
    help="Our engine inside other servers.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    cls=lazy_group(
        LazyCommand(
            "triton",
            "diffuserve.cli.integrations.triton",
            "Write a model repository for Triton Inference Server.",
            needs_arguments=True,
            extra=Extra.SERVER,
        ),
        LazyCommand(
            "torchserve",
            "diffuserve.cli.integrations.torchserve",
            "Write a model archive for TorchServe.",
            needs_arguments=True,
            extra=Extra.SERVER,
        ),
        LazyCommand(
            "modal",
            "diffuserve.cli.integrations.modal",
            "Write an app for Modal.",
            needs_arguments=True,
        ),
        LazyCommand(
            "comfyui",
            "diffuserve.cli.integrations.comfyui",
            "Write nodes for ComfyUI that draw on a diffuserve server.",
            needs_arguments=True,
        ),
    ),
)


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Raise `InvalidParams` for a place in which the block cannot write."""
    try:
        yield
    except OSError as error:
        remedy = f"cannot be written ({error.strerror}); give a place in which you may create files"
        raise InvalidParams("place", str(place), remedy) from error


def told(settings: Settings) -> Mapping[str, str]:
    """Return what options and the environment say of the engine and its filters, as texts by setting."""
    given = {name: getattr(settings, name) for name in _WRITTEN if name in settings.model_fields_set}
    return {name: _text(value) for name, value in given.items() if value is not None}


def _text(value: Any) -> str:
    return json.dumps(dict(value)) if isinstance(value, Mapping) else str(value)
