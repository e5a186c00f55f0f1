"""LitServe as its documentation uses it: diffusers' pipeline behind `/predict`, one request at a time.

python -m benchmarks.serve.litserve_app --port 8009
"""

import argparse
import base64
import io
from typing import Any

import litserve
import torch
from diffusers import FluxPipeline
from PIL import Image

from benchmarks.shared.default_dtype import engine_dtype
from benchmarks.shared.workloads import CHECKPOINT

_TIMEOUT_SECONDS = 300


class StockApi(litserve.LitAPI):  # type: ignore[misc]
    """Draws an image for each request and returns it as a PNG file in JSON."""

    def setup(self, device: str) -> None:
        self._pipeline = FluxPipeline.from_pretrained(
            CHECKPOINT, dtype=engine_dtype(), local_files_only=True, trust_remote_code=False
        )
        self._pipeline.set_progress_bar_config(disable=True)

    def decode_request(self, request: dict[str, Any]) -> dict[str, Any]:
        return dict(request["input"])

    def predict(self, params: dict[str, Any]) -> Image.Image:
        generator = torch.Generator("cpu").manual_seed(params["seed"])
        names = ("prompt", "width", "height", "num_inference_steps", "max_sequence_length")
        result = self._pipeline(**{name: params[name] for name in names}, generator=generator)
        image: Image.Image = result.images[0]
        return image

    def encode_response(self, image: Image.Image) -> dict[str, str]:
        file = io.BytesIO()
        image.save(file, "PNG")
        return {"png": base64.b64encode(file.getvalue()).decode()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    server = litserve.LitServer(StockApi(), accelerator="cpu", timeout=_TIMEOUT_SECONDS)
    server.run(
        host="127.0.0.1",
        port=parser.parse_args().port,
        generate_client_file=False,
        log_level="warning",
    )


if __name__ == "__main__":
    main()
