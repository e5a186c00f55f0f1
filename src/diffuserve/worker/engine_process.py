"""The engine process. It connects to its agent before anything heavy is imported.

Importing torch takes seconds, and from its first moment on this process must notice that its agent
is gone. Where torchrun has started several of them, only rank 0 speaks to the agent.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from diffuserve.domain.errors import DiffuserveError
from diffuserve.worker.agent_link import AgentLink, die_with_parent
from diffuserve.worker.config import ImageOptions
from diffuserve.worker.messages import Beat

if TYPE_CHECKING:
    from diffuserve.worker.engine_host import EngineHost
    from diffuserve.worker.rank_process import RankOptions

_BEAT_SECONDS = 1.0


def main() -> None:
    args = parse_arguments()
    die_with_parent()
    rank = os.environ.get("RANK")  # noqa: TID251 (so torchrun speaks to what it starts)
    try:
        if rank in (None, "0"):
            serve_agent(args, is_alone=rank is None)
        else:
            from diffuserve.worker.rank_process import follow

            follow(_rank_options(args))
    except DiffuserveError as error:
        sys.exit(f"error: {error}")


def serve_agent(args: argparse.Namespace, is_alone: bool) -> None:
    link = AgentLink(args.socket)
    host: EngineHost | None = None  # comes once the model is loaded; nothing is asked of us before that

    def on_host(loaded: "EngineHost") -> None:
        nonlocal host
        host = loaded

    link.listen(lambda message: host.handle(message) if host else None)
    link.every(_BEAT_SECONDS, lambda: host.beat() if host else Beat(num_moves=0, num_unfinished=0))
    if is_alone:
        on_host(_load_host(args, link))
        assert host is not None
        host.run()
    else:
        from diffuserve.worker.rank_process import lead

        lead(_rank_options(args), args.cost_fit, _image_options(args), link, on_host)


def _load_host(args: argparse.Namespace, link: AgentLink) -> "EngineHost":
    from diffuserve.worker.engine_host import load_host

    return load_host(args.model, args.device, args.dtype, args.cost_fit, _image_options(args), link)


def _rank_options(args: argparse.Namespace) -> "RankOptions":
    from diffuserve.worker.rank_process import RankOptions

    return RankOptions(args.model, args.device, args.dtype, args.parallel, args.collective_seconds)


def _image_options(args: argparse.Namespace) -> ImageOptions:
    return ImageOptions(
        image_filter=args.image_filter, image_rules=args.image_rules, has_metadata=args.has_metadata
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The engine of a worker; started by its agent.")
    parser.add_argument("--socket", type=Path, help="the agent's; only rank 0 needs it")
    parser.add_argument("--model", required=True)
    parser.add_argument("--device")
    parser.add_argument("--dtype")
    parser.add_argument("--cost-fit", type=Path)
    parser.add_argument("--parallel", help="how ranks share a request: sequence=N,cfg=N")
    parser.add_argument("--collective-seconds", type=float, default=120.0)
    parser.add_argument("--image-filter", default=ImageOptions.image_filter)
    parser.add_argument("--image-rules", type=json.loads, default={}, help="a JSON object by label")
    parser.add_argument("--no-metadata", dest="has_metadata", action="store_false")
    return parser.parse_args()


if __name__ == "__main__":
    main()
