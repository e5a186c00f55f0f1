"""Loading the engine of the commands that generate images in their own process."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from diffuserve.cli.display.console import Console
from diffuserve.domain.models.description import in_a_line
from diffuserve.engine_process.model.lone_engine import lone_engine
from diffuserve.engine_process.model.prepared_model import read_ahead
from diffuserve.models.machine.torch_environment import prepare_torch
from diffuserve.protocol.config import EngineProcessConfig

if TYPE_CHECKING:
    from diffuserve.engine.engine import Engine


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the garbage collector away from what is imported and loaded within the block, and stays."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def load_engine(config: EngineProcessConfig, console: Console) -> "Engine":
    """Load the model while a spinner turns; raise what `Engine.load` raises."""
    prepare_torch()
    read_ahead(config)
    with console.status(f"loading {config.model}"):
        engine = lone_engine(config)
    console.print(in_a_line(engine.describe()), style="dim")
    return engine
