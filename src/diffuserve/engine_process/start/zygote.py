"""The zygote: a process that has done what every start of an engine repeats, and is forked for each of them.

It imports torch and the engine and, where they are small beside the machine's memory, maps the weights; then
it forks an engine whenever its agent asks. Where it serves several models it only imports: what one model
keeps in memory would be missing for the others. It keeps to the rules that make this safe: it has one thread,
it never touches CUDA, and its engines end with it, as it ends with its agent.
"""

import argparse
import gc
import logging
import os
import selectors
import socket
from functools import partial
from io import RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING

from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.parts import Parts
from diffuserve.domain.models.quantization import Quantization
from diffuserve.engine_process.agent_link import die_with_parent, end_with_agent_alone
from diffuserve.engine_process.model.prepared_model import prepare_in_child
from diffuserve.engine_process.model.stored_model import with_known_model
from diffuserve.engine_process.start.main import run_engine, run_to_exit, serve_agent
from diffuserve.models.machine.torch_environment import prepare_torch
from diffuserve.models.registry import find_quantization, num_weight_bytes
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.protocol.config import EngineProcessConfig
from diffuserve.protocol.messages import decode, encode
from diffuserve.protocol.zygote_messages import EngineEnded, EngineForked, ForkEngine, FromZygote, ZygoteReady
from diffuserve.telemetry.logs import configure_logs
from diffuserve.telemetry.memory import memory_limit

if TYPE_CHECKING:
    from diffuserve.engine.loading import LoadedModel

log = logging.getLogger(__name__)

_HELD_SHARE = 1 / 16
"""Share of the machine's memory that the files of weights may have, for the zygote to hold them."""
_NOTHING = Parts(encoding=False, denoising=False, decoding=False)
_THREADS = Path("/proc/self/task")
# OpenBLAS starts its threads when numpy is imported, and `torch.cuda.is_available()` would otherwise
# initialize CUDA: neither outlives a fork.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


def main() -> None:
    arguments = parse_arguments()
    end_with_agent_alone()
    prepare_torch()
    os.environ.update(_ENVIRONMENT)  # noqa: TID251 (these libraries have no other interface)
    config = EngineProcessConfig.from_json(arguments.config)
    configure_logs(config.logs)
    connection = socket.socket(fileno=arguments.connection)
    if arguments.imports_only:
        run_to_exit(ForkServer(config, connection, holds_model=False).run)
    run_to_exit(ForkServer(with_known_model(config), connection).run)


class ForkServer:
    """Forks engines for the agent at the other end of `connection`.

    One that `holds_model` forks engines of that model alone; another one engines of any model.
    """

    def __init__(
        self, config: EngineProcessConfig, connection: socket.socket, holds_model: bool = True
    ) -> None:
        self._config, self._connection, self._holds_model = config, connection, holds_model
        self._selector = selectors.DefaultSelector()
        self._model: LoadedModel | None = None

    def run(self) -> None:
        """Prepare, then fork an engine for every request, until the agent closes the connection."""
        gc.disable()
        if self._holds_model:
            self._model = prepared(self._config)
        else:
            import_engine()
        gc.collect()
        gc.freeze()  # otherwise garbage collection in a child would write to shared pages
        self._send(ZygoteReady())
        with self._connection.makefile("rb", buffering=0) as lines:
            self._selector.register(lines, selectors.EVENT_READ)
            while self._follow(lines):
                pass

    def _follow(self, lines: RawIOBase) -> bool:
        """Wait for what happens next; return whether the agent is still there."""
        for key, _events in self._selector.select():
            if key.fileobj is not lines:
                self._report_end(int(key.fd), key.data)
            elif line := lines.readline():
                message = decode(line)
                assert isinstance(message, ForkEngine)
                self._fork(message)
            else:
                return False
        return True

    def _fork(self, order: ForkEngine) -> None:
        check_one_thread()
        zygote = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_engine(zygote, order)
        self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ, data=pid)
        self._send(EngineForked(pid=pid))

    def _become_engine(self, zygote: int, order: ForkEngine) -> None:
        """Run an engine in the process that was just forked, to its end."""
        os.setsid()
        die_with_parent()
        if os.getppid() != zygote:  # the zygote ended before the call above
            os._exit(1)
        self._selector.close()
        self._connection.close()
        run = partial(run_engine, self._model)
        config = self._config if self._holds_model else EngineProcessConfig.from_json(order.config)
        run_to_exit(partial(serve_agent, config, Path(order.socket), run))

    def _report_end(self, descriptor: int, pid: int) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)
        _, status = os.waitpid(pid, 0)
        self._send(EngineEnded(pid=pid, code=os.waitstatus_to_exitcode(status)))

    def _send(self, message: FromZygote) -> None:
        self._connection.sendall(encode(message))


def prepared(config: EngineProcessConfig) -> "LoadedModel | None":
    """Import what an engine needs, and return its model, if engines may share the memory that it takes.

    Weights are held for CPUs alone: those of GPUs cannot be shared through a fork. They are held if they are
    small, or mapped from a prepared copy.
    """
    from diffuserve.engine.loading import load_model
    from diffuserve.engine_process.engine_host import read_model
    from diffuserve.models.machine.devices import choose_device

    if choose_device(config.device).type == "cpu":
        is_small = num_weight_bytes(config.model, config.parts) <= _HELD_SHARE * memory_limit()
        if not is_small:
            prepare_in_child(config)
        model = _mapped(config)
        if model is None and is_small:
            model = read_model(config)
        if model is not None:
            return model
    nothing = LoadPlan(choose_device("cpu"), parts=_NOTHING)
    load_model(config.model, nothing)  # imports the family and reads nothing
    return None


def _mapped(config: EngineProcessConfig) -> "LoadedModel | None":
    """Return the model with the weights of its prepared copy; `None` if it would take memory of its own."""
    from diffuserve.engine_process.engine_host import read_model
    from diffuserve.models.machine.cpu_products import cpu_has_int8
    from diffuserve.models.weights.prepared import NotPrepared

    is_packed = find_quantization(config.model, config.quantization) is Quantization.INT8 and cpu_has_int8()
    if is_packed or config.offload is not Offload.NONE:
        return None  # oneDNN, or slots, have weights in memory of their own
    try:
        return read_model(config, is_strict=True)
    except NotPrepared as error:
        log.info("%s is not mapped for engines to share: %s", config.model, error)
        return None


def import_engine() -> None:
    """Import what engines of all families need, and keep nothing of a model."""
    import diffuserve.engine_process.engine_host  # noqa: F401 (its modules are what a fork has already)


def check_one_thread() -> None:
    """Raise `RuntimeError` if another thread runs: what it holds would stay locked in a fork for ever."""
    num_threads = sum(1 for _ in _THREADS.iterdir())
    if num_threads != 1:
        raise RuntimeError(f"the zygote has {num_threads} threads, and can be forked with one alone")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The zygote of a worker; started by its agent.")
    parser.add_argument("--config", required=True, help="JSON of EngineProcessConfig")
    parser.add_argument("--connection", type=int, required=True, help="descriptor of the agent's socket")
    parser.add_argument("--imports-only", action="store_true", help="hold no model, and fork engines of any")
    return parser.parse_args()


if __name__ == "__main__":
    main()
