"""`diffuserve quantize`: a model's folder with weights of fewer bits."""

from pathlib import Path
from typing import Annotated

import typer

from diffuserve.cli.display.console import Console
from diffuserve.cli.display.echo import echo
from diffuserve.cli.display.sizes import human_bytes
from diffuserve.cli.store.models import ModelName
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.extras import check_installed
from diffuserve.domain.models.quantization import Quantization
from diffuserve.models.folders.folder import ModelFolder, open_model

EXAMPLES = """
Examples:

  diffuserve quantize tiny-flux tiny-flux-int8

  diffuserve quantize flux-schnell /models/flux-schnell-fp8 --quantization fp8
"""


def quantize(
    model: ModelName,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write it; not there yet.")],
    quantization: Annotated[
        Quantization,
        typer.Option(
            help="Numbers of the weights: int8, fp8, or int4, which is slower to run and visibly different."
        ),
    ] = Quantization.INT8,
) -> None:
    """Write a model's folder with quantized weights: it takes less space, and loads without the arithmetic.

    `--model FOLDER` serves it, and no other option is needed. The autoencoder and the small layers stay as
    they are.
    """
    if quantization is Quantization.NONE:
        raise InvalidParams("quantization", str(quantization), "leaves everything as it is; give another")
    check_installed(model)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    before = open_model(model).num_weight_bytes()
    with console.status(f"quantizing {model}"):
        from diffuserve.models.quantized_folder import write_quantized

        try:
            write_quantized(model, folder, quantization)
        except OSError as error:
            remedy = (
                f"cannot be written ({error.strerror}); give a folder that you may make, on a disk with room"
            )
            raise InvalidParams("folder", str(folder), remedy) from error
    after = ModelFolder(folder).num_weight_bytes()
    console.print(
        f"{human_bytes(after)} of weights instead of {human_bytes(before)}. "
        f"Serve it: diffuserve serve --model {folder}",
    )
    echo(folder)
