"""`diffuserve import`: a model of a single file of weights."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from diffuserve.cli.completion import model_names
from diffuserve.cli.display.console import Console
from diffuserve.cli.display.echo import echo
from diffuserve.cli.display.sizes import human_bytes
from diffuserve.cli.store.transfers import transfers
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.extras import Extra, missing_module
from diffuserve.models.checkpoint_files.import_plan import ConvertedPart, ImportPlan, plan_import
from diffuserve.models.folders.local_models import check_new_name
from diffuserve.models.registry import read_spec

EXAMPLES = """
Examples:

  diffuserve import realistic.safetensors --as realistic

  diffuserve import transformer.safetensors --as portraits --base /models/base

  diffuserve import transformer.safetensors --as portraits --parts vae=ae.safetensors
"""

_BETWEEN_PARTS = re.compile(r",(?=\w+=)")

File = Annotated[Path, typer.Argument(metavar="FILE", help="File of weights.", show_default=False)]
Name = Annotated[
    str, typer.Option("--as", metavar="NAME", help="Name that `--model` will take.", show_default=False)
]
Base = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        help="Model whose text encoders, VAE, tokenizers and scheduler are taken where the file has none; by "
        "default the one that the file's kind is known for.",
        autocompletion=model_names,
        show_default=False,
    ),
]
GivenParts = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PART=PATH",
        help="File or folder of a part, such as vae=ae.safetensors; can be repeated.",
        show_default=False,
    ),
]


Dequantize = Annotated[
    bool,
    typer.Option(
        "--dequantize",
        help="Write all weights as floats, which takes more space and lets --quantization choose; by default "
        "those of GGUF and fp8 stay in their bits where layers have such.",
    ),
]


def import_model(
    file: File, name: Name, base: Base = None, parts: GivenParts = None, dequantize: Dequantize = False
) -> None:
    """Make a model of a single file of weights, once: a folder that `--model NAME` finds.

    The file is .safetensors or .gguf, in the layout of its authors or of ComfyUI, of Stable Diffusion 1.5 and
    XL, FLUX.1, Wan, Z-Image or Qwen-Image; its tensors say which. Nothing is downloaded: parts that it lacks
    come from a model that is on this machine, and if none is there, the message has the command that gets
    them. The folder goes to stdout.
    """
    import_file(file, name, base, parts or (), keeps_few_bits=not dequantize)


def import_file(
    file: Path, name: str, base: str | None, parts: Sequence[str] = (), keeps_few_bits: bool = True
) -> None:
    """Make a model of a file, and show what it has become. Raise `InvalidModel` or `InvalidParams`."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    target = check_new_name(name)
    plan = plan_import(file, base, _given(parts))
    if (module := missing_module(Extra.DIFFUSERS)) is not None:
        remedy = f"is converted by {module}, which is not installed; {Extra.DIFFUSERS.remedy}"
        raise InvalidParams("file", str(file), remedy)
    for line in _described(plan):
        console.print(line)
    from diffuserve.models.checkpoint_files.write_model import write_model

    with transfers(console) as shown:
        write_model(
            plan,
            target,
            lambda num_bytes: shown.begin(name, num_bytes),
            lambda path: read_spec(str(path)),
            console.print,
            keeps_few_bits,
        )
    console.print(f"Serve it: diffuserve serve --model {name}")
    echo(target)


def _given(parts: Sequence[str]) -> dict[str, Path]:
    """Return the paths of given parts by component. Raise `InvalidParams`."""
    given: dict[str, Path] = {}
    for part in (piece for text in parts for piece in _BETWEEN_PARTS.split(text)):
        component, equals, path = part.partition("=")
        if not (component.isidentifier() and equals and Path(path).expanduser().exists()):
            remedy = "must be a component and a file or folder that is there, such as vae=ae.safetensors"
            raise InvalidParams("parts", part, remedy)
        given[component] = Path(path).expanduser()
    return given


def _described(plan: ImportPlan) -> list[str]:
    """Return what a file is, and where the other parts come from."""
    recognized = plan.recognized
    path = recognized.file.path
    own = [name for name, part in plan.parts.items() if _is_of(part, path)]
    lines = [
        f"{path.name}: {recognized.kind.title}, {human_bytes(path.stat().st_size)}; it has {', '.join(own)}"
    ]
    if others := [name for name in plan.parts if name not in own]:
        lines.append(f"from {plan.origin['base']} or as given: {', '.join(others)}")
    if plan.left_out:
        lines.append(f"left out, as no part of the model: {', '.join(plan.left_out)}")
    if license := plan.origin["license"]:
        lines.append(f"license, as the file says: {license}")
    return lines


def _is_of(part: object, path: Path) -> bool:
    return isinstance(part, ConvertedPart) and part.file.path == path
