"""The prepared copy of an engine process's model: read in place of its files, and made by its zygote."""

import logging
import os
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from diffuserve.domain.errors import DiffuserveError
from diffuserve.engine_process.agent_link import die_with_parent
from diffuserve.models.registry import read_weights_ahead
from diffuserve.modelstore.prepared_copies import LoadOptions, copied_files, find_copy, is_cached, make_copy
from diffuserve.protocol.config import EngineProcessConfig

if TYPE_CHECKING:
    from diffuserve.models.weights.prepared import WholeCopy

log = logging.getLogger(__name__)

_LOWEST_PRIORITY = 19


def load_options(config: EngineProcessConfig) -> LoadOptions:
    """Return what tells copies of this configuration from others."""
    return LoadOptions(config.model, config.device, config.dtype, config.quantization)


def read_ahead(config: EngineProcessConfig) -> Thread:
    """Have the weights that will be loaded read while torch is imported: see `read_weights_ahead`."""

    def in_copy(files: list[Path]) -> list[Path]:
        copy = find_copy(load_options(config), config.stored)
        return files if copy is None else copied_files(copy.folder, files)

    return read_weights_ahead(config.model, config.parts, in_copy)


def prepared_copy(config: EngineProcessConfig, is_strict: bool = False) -> "WholeCopy | None":
    """Return the prepared copy, which this process then keeps; `None` if there is none.

    With `is_strict` a model is loaded from nothing else: raise `NotPrepared`.
    """
    from diffuserve.models.weights.prepared import NotPrepared, WholeCopy

    copy = find_copy(load_options(config), config.stored)
    if copy is None and is_strict:
        raise NotPrepared("there is no prepared copy")
    return None if copy is None else WholeCopy(copy.folder, is_strict)


def prepare_in_child(config: EngineProcessConfig) -> None:
    """Make the copy of a cached model, in a process of its own, which leaves no memory behind here.

    A failure is logged: engines load the model without it. The calling process has one thread.
    """
    if not config.prepare_models or not is_cached(config.model, config.stored):
        return
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        die_with_parent()
        os._exit(_prepare(config) if os.getppid() == parent else 1)
    os.waitpid(pid, 0)


def _prepare(config: EngineProcessConfig) -> int:
    """Make the copy behind all other work of the machine; return the exit code."""
    os.nice(_LOWEST_PRIORITY)
    try:
        make_copy(load_options(config), config.stored)
    except DiffuserveError as error:
        log.warning("%s is loaded without a prepared copy: %s", config.model, error)
        return 1
    except Exception:
        log.exception("no prepared copy of %s could be made", config.model)
        return 1
    return 0
