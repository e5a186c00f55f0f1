"""Other servers of the bundled model, as their documentation builds them, for `serve-peers`.

    python -m benchmarks.serve.peer_servers ray --port 8009 --batch 8

FastAPI draws one request at a time; Ray Serve collects up to `--batch` of them. Behind each is diffusers'
pipeline, which draws those of a batch together that agree in size and steps, or with `--model ours` our
engine, which draws them all together.
"""

import argparse
import base64
import io
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

from PIL.Image import Image

Asked = dict[str, Any]
Drawn = dict[str, str]
Draw = Callable[[Sequence[Asked]], list[Drawn]]

WAIT_SECONDS = 0.05
"""How long the others collect a batch."""
_ALIKE = ("width", "height", "num_inference_steps")
_MANY = 10_000


def load_stock() -> Draw:
    """Return diffusers' pipeline, in the engine's dtype."""
    import torch
    from diffusers import FluxPipeline

    from benchmarks.shared.default_dtype import engine_dtype
    from benchmarks.shared.workloads import CHECKPOINT

    pipeline = FluxPipeline.from_pretrained(
        CHECKPOINT, dtype=engine_dtype(), local_files_only=True, trust_remote_code=False
    )
    pipeline.set_progress_bar_config(disable=True)

    def draw(asked: Sequence[Asked]) -> list[Drawn]:
        groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for place, each in enumerate(asked):
            groups[tuple(each[name] for name in _ALIKE)].append(place)
        drawn: dict[int, Drawn] = {}
        for alike, places in groups.items():
            generators = [torch.Generator("cpu").manual_seed(asked[place]["seed"]) for place in places]
            images = pipeline(
                [asked[place]["prompt"] for place in places],
                **dict(zip(_ALIKE, alike, strict=True)),
                max_sequence_length=32,
                generator=generators,
            ).images
            drawn |= {place: _encoded(image) for place, image in zip(places, images, strict=True)}
        return [drawn[place] for place in range(len(asked))]

    return draw


def load_ours() -> Draw:
    """Return our engine, which is handed a batch and draws it to its end."""
    from benchmarks.shared.workloads import CHECKPOINT
    from diffuserve import Engine
    from diffuserve.domain.requests.params import GenerationParams

    engine = Engine.load(str(CHECKPOINT), device="cpu")

    def draw(asked: Sequence[Asked]) -> list[Drawn]:
        results = engine.generate([GenerationParams(**each, max_sequence_length=32) for each in asked])
        return [_encoded(result.images[0]) for result in results]

    return draw


LOADERS = {"stock": load_stock, "ours": load_ours}


def serve_fastapi(load: Callable[[], Draw], arguments: argparse.Namespace) -> None:
    """Serve one request at a time."""
    import uvicorn
    from fastapi import FastAPI

    app, draw, turn = FastAPI(), load(), Lock()

    @app.get("/health")
    def health() -> None:
        pass

    @app.post("/predict")
    def predict(asked: dict[str, Asked]) -> Drawn:
        with turn:
            return draw([asked["input"]])[0]

    uvicorn.run(app, port=arguments.port, log_level="warning")


def serve_ray(load: Callable[[], Draw], arguments: argparse.Namespace) -> None:
    """Serve batches that Ray Serve collects."""
    import ray
    from fastapi import FastAPI
    from ray import serve

    app, cores = FastAPI(), len(os.sched_getaffinity(0))
    ray.init("local", num_cpus=2 * cores, include_dashboard=False, _node_ip_address="127.0.0.1")

    @serve.deployment(
        max_ongoing_requests=_MANY,
        ray_actor_options={"num_cpus": cores},  # which Ray makes its threads; the proxy needs its own
    )
    @serve.ingress(app)
    class Images:
        def __init__(self) -> None:
            self.draw = load()

        @serve.batch(max_batch_size=arguments.batch, batch_wait_timeout_s=WAIT_SECONDS)  # type: ignore[untyped-decorator]
        async def batched(self, asked: list[Asked]) -> list[Drawn]:
            return self.draw(asked)

        @app.get("/health")
        async def health(self) -> None:
            pass

        @app.post("/predict")
        async def predict(self, asked: dict[str, Asked]) -> Drawn:
            drawn: Drawn = await self.batched(asked["input"])
            return drawn

    serve.start(http_options={"host": "127.0.0.1", "port": arguments.port})
    serve.run(Images.bind(), blocking=True)  # type: ignore[attr-defined]


HOSTS = {"fastapi": serve_fastapi, "ray": serve_ray}


def _encoded(image: Image) -> Drawn:
    file = io.BytesIO()
    image.save(file, "PNG")
    return {"png": base64.b64encode(file.getvalue()).decode()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("host", choices=HOSTS)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", choices=LOADERS, default="stock")
    parser.add_argument("--batch", type=int, default=1)
    arguments = parser.parse_args()
    HOSTS[arguments.host](LOADERS[arguments.model], arguments)


if __name__ == "__main__":
    main()
