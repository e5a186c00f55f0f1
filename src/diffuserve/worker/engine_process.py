"""The engine process. It connects to its agent before anything heavy is imported.

Importing torch takes seconds, and from its first moment on this process must notice that its agent
is gone.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from diffuserve.domain.errors import DiffuserveError
from diffuserve.worker.agent_link import AgentLink, die_with_parent
from diffuserve.worker.messages import Beat

if TYPE_CHECKING:
    from diffuserve.worker.engine_host import EngineHost

_BEAT_SECONDS = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description="The engine of a worker; started by its agent.")
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--device")
    parser.add_argument("--dtype")
    parser.add_argument("--cost-fit", type=Path)
    args = parser.parse_args()

    die_with_parent()
    link = AgentLink(args.socket)
    host: EngineHost | None = None  # comes once the model is loaded; nothing is asked of us before that
    link.listen(lambda message: host.handle(message) if host else None)
    link.every(_BEAT_SECONDS, lambda: host.beat() if host else Beat(num_moves=0, num_unfinished=0))

    from diffuserve.worker.engine_host import load_host

    try:
        host = load_host(args.model, args.device, args.dtype, args.cost_fit, link)
    except DiffuserveError as error:
        sys.exit(f"error: {error}")
    host.run()


if __name__ == "__main__":
    main()
