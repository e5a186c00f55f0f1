"""LitServe as its documentation uses it: a model behind `/predict`, in batches that LitServe collects.

python -m benchmarks.serve.litserve_app --port 8009 --batch 8
"""

import argparse
import os
from typing import Any

import litserve
import torch

from benchmarks.serve.peer_servers import LOADERS, WAIT_SECONDS, Asked, Drawn

_TIMEOUT_SECONDS = 300


class Api(litserve.LitAPI):  # type: ignore[misc]
    """Draws an image for each request and returns it as a PNG file in JSON."""

    def __init__(self, model: str, threads: int, **options: Any) -> None:
        super().__init__(**options)
        self._model, self._threads = model, threads

    def setup(self, device: str) -> None:
        torch.set_num_threads(min(torch.get_num_threads(), self._threads))
        self._draw = LOADERS[self._model]()

    def decode_request(self, request: dict[str, Any]) -> Asked:
        return dict(request["input"])

    def predict(self, asked: Asked | list[Asked]) -> Drawn | list[Drawn]:
        return self._draw(asked) if isinstance(asked, list) else self._draw([asked])[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", choices=LOADERS, default="stock")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1, help="which share the cores")
    given = parser.parse_args()
    threads = max(1, len(os.sched_getaffinity(0)) // given.workers)
    batching = {"max_batch_size": given.batch, "batch_timeout": WAIT_SECONDS if given.batch > 1 else 0.0}
    server = litserve.LitServer(
        Api(given.model, threads, **batching),
        accelerator="cpu",
        workers_per_device=given.workers,
        timeout=_TIMEOUT_SECONDS,
    )
    server.run(host="127.0.0.1", port=given.port, generate_client_file=False, log_level="warning")


if __name__ == "__main__":
    main()
