"""`diffuserve compile`: a model's blocks compiled for this machine."""

from diffuserve.cli import options
from diffuserve.cli.display.console import Console
from diffuserve.cli.display.echo import echo
from diffuserve.cli.store.models import ModelName
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.extras import check_installed
from diffuserve.models.machine.hardware import check_device, is_cpu
from diffuserve.settings import Settings

EXAMPLES = """
Examples:

  diffuserve compile flux-schnell

  diffuserve compile flux-schnell --device cuda:1 --dtype bfloat16
"""


@options.takes_settings("device", "dtype")
def compile_model(settings: Settings, model: ModelName) -> None:
    """Compile a model's blocks for a GPU of this machine, in minutes and once; its engines run them.

    Engines compile nothing. The blocks are kept for this user, and fit this GPU and this torch alone, and all
    models of one shape. On CPUs they gain nothing: there the command is refused.
    """
    check_installed(model)
    config = settings.engine_process
    assert config.compiled_folder is not None
    check_device(config.device)
    if is_cpu(config.device):
        remedy = "compiled blocks gain nothing on a CPU, and engines do not use them there; name a GPU"
        raise InvalidParams("device", config.device or "cpu", remedy)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    with console.status(f"compiling blocks of {model}"):
        from diffuserve.models.compiled.store import compile_blocks
        from diffuserve.models.machine.devices import choose_device, parse_dtype
        from diffuserve.models.registry import open_compilable

        device = choose_device(config.device)
        blocks = open_compilable(model, device, parse_dtype(config.dtype))
        compiled = compile_blocks(blocks, device, config.compiled_folder)
    echo(compiled)
