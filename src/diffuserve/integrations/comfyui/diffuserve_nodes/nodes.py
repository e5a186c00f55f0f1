"""The nodes: a job that is submitted, one for images, and one for a clip."""

import base64
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image

from . import jobs

_LARGEST_SEED = 2**63 - 1
_NONE = ""  # an input that says nothing: the model's default


def _prompt_inputs() -> dict[str, Any]:
    return {
        "prompt": ("STRING", {"multiline": True, "tooltip": "What is drawn."}),
        "seed": ("INT", {"default": 0, "min": 0, "max": _LARGEST_SEED, "control_after_generate": True}),
    }


def _more_inputs() -> dict[str, Any]:
    size = {"default": 0, "min": 0, "max": 65_536, "tooltip": "0 is the model's own."}
    return {
        "width": ("INT", size),
        "height": ("INT", size),
        "steps": ("INT", {"default": 0, "min": 0, "max": 100, "tooltip": "0 is the model's own."}),
        "guidance": (
            "FLOAT",
            {"default": -1.0, "min": -1.0, "max": 100.0, "tooltip": "Below 0 is the model's own."},
        ),
        "negative_prompt": ("STRING", {"multiline": True, "default": _NONE}),
        "model": ("STRING", {"default": _NONE, "tooltip": "By default the server's."}),
        "adapters": ("STRING", {"default": _NONE, "tooltip": "LoRA, as in emoji:0.8, ink"}),
        "image": ("IMAGE", {"tooltip": "To start from, to fill in or to edit."}),
        "mask": ("MASK", {"tooltip": "Where the image is filled in."}),
        "strength": ("FLOAT", {"default": 0.0, "min": 0.0, "max": 1.0, "tooltip": "0 is the model's own."}),
    }


class DiffuserveSubmit:
    """Submits a job, and does not wait: many can draw at once, each fetched by its id."""

    CATEGORY, FUNCTION = "api/diffuserve", "submit"
    RETURN_TYPES, RETURN_NAMES = ("STRING",), ("job_id",)
    DESCRIPTION = "Queues a job on a diffuserve server, and returns its id for diffuserve image or video."

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """Return the inputs as ComfyUI shows them."""
        kinds = (["image", "video"], {"default": "image"})
        count = ("INT", {"default": 1, "min": 1, "max": 16})
        length = ("FLOAT", {"default": 0.0, "min": 0.0, "max": 600.0, "tooltip": "Of a video."})
        required = {**_prompt_inputs(), "kind": kinds}
        return {"required": required, "optional": {**_more_inputs(), "num_images": count, "seconds": length}}

    def submit(self, prompt: str, seed: int, kind: str = "image", **more: Any) -> tuple[str]:
        """Return the id of a new job."""
        return (str(_submitted(kind, prompt, seed, more)["id"]),)


class DiffuserveImage:
    """Draws images, or waits for those of a job."""

    CATEGORY, FUNCTION = "api/diffuserve", "draw"
    RETURN_TYPES, RETURN_NAMES = ("IMAGE",), ("images",)
    DESCRIPTION = "Draws images on a diffuserve server, or fetches those of a job_id."

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """Return the inputs as ComfyUI shows them."""
        count = ("INT", {"default": 1, "min": 1, "max": 16})
        job = ("STRING", {"default": _NONE, "forceInput": True})
        return {
            "required": _prompt_inputs(),
            "optional": {"num_images": count, **_more_inputs(), "job_id": job},
        }

    def draw(self, prompt: str, seed: int, job_id: str = _NONE, **more: Any) -> tuple[torch.Tensor]:
        """Return the images, (count, height, width, 3) in 0…1."""
        job = _found(job_id) if job_id else _submitted("image", prompt, seed, more)
        done = _awaited(job)
        pictures = [Image.open(io.BytesIO(jobs.fetched(url))).convert("RGB") for url in _urls(done, "image")]
        return (torch.stack([_tensor(picture) for picture in pictures]),)


class DiffuserveVideo:
    """Draws a clip, or waits for that of a job."""

    CATEGORY, FUNCTION = "api/diffuserve", "draw"
    RETURN_TYPES, RETURN_NAMES = ("IMAGE", "FLOAT"), ("frames", "fps")
    DESCRIPTION = "Draws a clip on a diffuserve server, or fetches that of a job_id."

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """Return the inputs as ComfyUI shows them."""
        length = ("FLOAT", {"default": 0.0, "min": 0.0, "max": 600.0, "tooltip": "0 is the model's own."})
        job = ("STRING", {"default": _NONE, "forceInput": True})
        return {
            "required": _prompt_inputs(),
            "optional": {"seconds": length, **_more_inputs(), "job_id": job},
        }

    def draw(self, prompt: str, seed: int, job_id: str = _NONE, **more: Any) -> tuple[torch.Tensor, float]:
        """Return the frames, (count, height, width, 3) in 0…1, and how many are shown in a second."""
        done = _awaited(_found(job_id) if job_id else _submitted("video", prompt, seed, more))
        frames = _frames(jobs.fetched(_urls(done, "video")[0]))
        return torch.stack(frames), float(done["input"]["fps"])


def _found(job_id: str) -> Mapping[str, Any]:
    job: Mapping[str, Any] = jobs.call("GET", f"/v1/jobs/{job_id}")
    return job


def _submitted(kind: str, prompt: str, seed: int, more: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a new job; what says nothing is left out, and takes the model's default."""
    values: dict[str, Any] = {"prompt": prompt, "seed": seed}
    names = {"steps": "num_inference_steps"} | {
        name: name for name in ("width", "height", "negative_prompt", "strength", "num_images", "seconds")
    }
    values |= {field: more[name] for name, field in names.items() if more.get(name)}
    if more.get("guidance", -1.0) >= 0:
        values["guidance_scale"] = more["guidance"]
    if more.get("adapters"):
        values["adapters"] = [_adapter(text) for text in more["adapters"].split(",")]
    for name in ("image", "mask"):
        if more.get(name) is not None:
            values[name] = jobs.uploaded(_png(more[name]))
    body = {"kind": f"{kind}.generate", "input": values, "num_previews": 3 if kind == "image" else 0}
    job: Mapping[str, Any] = jobs.call("POST", "/v1/jobs", body | _model(more))
    return job


def _model(more: Mapping[str, Any]) -> dict[str, str]:
    return {"model": more["model"]} if more.get("model") else {}


def _adapter(text: str) -> dict[str, Any]:
    name, _, weight = text.strip().partition(":")
    return {"name": name, "weight": float(weight or 1.0)}


def _awaited(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the job once it has succeeded, with its progress and previews in ComfyUI's bar."""
    from comfy.model_management import throw_exception_if_processing_interrupted
    from comfy.utils import ProgressBar

    bar, shown = ProgressBar(100), {"percent": 0}

    def show(kind: str, data: Mapping[str, Any]) -> None:
        if kind == "progress":
            shown["percent"] = max(shown["percent"], round(100 * data["fraction"]))
            bar.update_absolute(shown["percent"], 100)
        elif kind == "preview":
            picture = Image.open(io.BytesIO(base64.b64decode(data["b64"])))
            bar.update_absolute(shown["percent"], 100, ("PNG", picture, None))

    return jobs.finished(job, throw_exception_if_processing_interrupted, show)


def _urls(job: Mapping[str, Any], role: str) -> list[str]:
    found = [each for each in job["result"]["artifacts"] if each["role"] == role]
    if not found:
        raise jobs.DrawingFailed(f"the job {job['id']} has no {role}")
    return [each["url"] for each in sorted(found, key=lambda each: each["index"])]


def _tensor(picture: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.asarray(picture, np.float32) / 255)


def _png(tensor: torch.Tensor) -> bytes:
    """Return the first image or mask of a batch as a file."""
    first = tensor[0] if tensor.ndim in (3, 4) else tensor
    buffer = io.BytesIO()
    Image.fromarray((first.clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy()).save(buffer, "PNG")
    return buffer.getvalue()


def _frames(clip: bytes) -> list[torch.Tensor]:
    """Return the frames of a clip; ComfyUI brings the package that reads it."""
    import av

    with av.open(io.BytesIO(clip), "r") as container:
        return [_tensor(frame.to_image()) for frame in container.decode(video=0)]  # type: ignore[no-untyped-call]


NODE_CLASS_MAPPINGS = {
    "diffuserve_submit": DiffuserveSubmit,
    "diffuserve_image": DiffuserveImage,
    "diffuserve_video": DiffuserveVideo,
}
NODE_DISPLAY_NAME_MAPPINGS = {name: name.replace("_", " ") for name in NODE_CLASS_MAPPINGS}
