"""The process that starts the ranks of a worker of several GPUs: torchrun, which only its agent ends.

python -m diffuserve.worker.rank_launcher --nproc-per-node=2 -m diffuserve.worker.engine_process …
"""

import os
import signal
import sys
import threading
from typing import NoReturn

from diffuserve.stop_signals import STOP_SIGNALS
from diffuserve.worker.agent_link import die_with_parent


def main() -> None:
    """Run torchrun. It handles stop signals, and so they are blocked; its ranks inherit that."""
    die_with_parent()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    from torch.distributed.run import main as run_torchrun  # after that, as it takes seconds

    run_torchrun()


def end_with_group() -> None:
    """Have this rank end by the SIGTERM of its launcher, which has lost another rank, and by no other."""
    if sys.platform == "linux":
        threading.Thread(target=_wait_for_launcher, args=(os.getppid(),), name="group", daemon=True).start()


def _wait_for_launcher(pid: int) -> NoReturn:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != pid:
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
