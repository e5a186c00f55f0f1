"""ComfyUI: its default graph from a text to an image."""

import asyncio
from typing import Any
from urllib.parse import urlencode

from diffuserve.bench.http import Http
from diffuserve.bench.load_request import LoadKind, LoadRequest
from diffuserve.bench.outcomes import Output, Reply, RequestFault, Trouble

_LOOK_SECONDS = 0.1
_SIDE = 512
_STEPS = 20


class ComfyUI:
    """A graph is queued, its history asked for until it is there, and its images fetched."""

    def __init__(self, model: str | None) -> None:
        self._model = model or "model.safetensors"

    async def draw(self, http: Http, asked: LoadRequest) -> Reply:
        """Queue the graph, follow it, fetch what it saved."""
        if asked.kind is not LoadKind.IMAGE:
            raise RequestFault(Trouble.REFUSED, "this graph draws no clips")
        found = await http.json("POST", "/prompt", {"prompt": self._graph(asked)})
        key, history = found["prompt_id"], {}
        while key not in history:
            await asyncio.sleep(_LOOK_SECONDS)
            history = await http.json("GET", f"/history/{key}")
        if history[key].get("status", {}).get("status_str") == "error":
            raise RequestFault(Trouble.FAILED, "execution_error")
        saved = [image for node in history[key]["outputs"].values() for image in node.get("images", ())]
        paths = [f"/view?{urlencode(image)}" for image in saved]
        return Reply(tuple([Output(await http.content(path)) for path in paths]))

    def _graph(self, asked: LoadRequest) -> dict[str, Any]:
        fields = asked.fields
        sampler = {
            "seed": fields.get("seed", 0),
            "steps": fields.get("num_inference_steps", _STEPS),
            "cfg": fields.get("guidance_scale", 1.0),
            "sampler_name": "euler",
            "scheduler": "normal",
            "denoise": 1.0,
            "model": ["4", 0],
            "positive": ["6", 0],
            "negative": ["7", 0],
            "latent_image": ["5", 0],
        }
        size = {"width": asked.width or _SIDE, "height": asked.height or _SIDE}
        return {
            "3": _node("KSampler", sampler),
            "4": _node("CheckpointLoaderSimple", {"ckpt_name": self._model}),
            "5": _node("EmptyLatentImage", {**size, "batch_size": asked.num_outputs}),
            "6": _node("CLIPTextEncode", {"text": asked.prompt, "clip": ["4", 1]}),
            "7": _node("CLIPTextEncode", {"text": fields.get("negative_prompt", ""), "clip": ["4", 1]}),
            "8": _node("VAEDecode", {"samples": ["3", 0], "vae": ["4", 2]}),
            "9": _node("SaveImage", {"filename_prefix": "bench", "images": ["8", 0]}),
        }


def _node(kind: str, inputs: dict[str, Any]) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs}
