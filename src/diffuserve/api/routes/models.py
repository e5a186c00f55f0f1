"""The models that can be asked for, in OpenAI's shape with our fields beside."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Response

from diffuserve.api.auth.dependencies import Client
from diffuserve.api.responses import json_response
from diffuserve.api.schemas import OPENAI_ANSWERS, ModelsShape
from diffuserve.api.services import Services, ServicesOf
from diffuserve.domain.model_spec import ModelSpec
from diffuserve.domain.worker import WorkerState

router = APIRouter(tags=["models"])

_DEFAULTS = ("width", "height", "num_inference_steps", "guidance_scale", "max_sequence_length")
_LIMITS = (
    "min_size",
    "max_size",
    "max_pixels",
    "max_images",
    "max_frames",
    "longest_sequence_length",
    "has_guidance",
    "has_negative_prompt",
)


@router.get("/v1/models", summary="List models", response_model=ModelsShape, responses=OPENAI_ANSWERS)
async def list_models(services: ServicesOf, caller: Client) -> Response:
    models = await services.catalog.models()
    documents = [
        _document(one.spec) | {"safety": await _safety(services, name)} for name, one in models.items()
    ]
    return json_response({"object": "list", "data": documents})


async def _safety(services: Services, model: str) -> dict[str, Any]:
    """The filters of this control plane and of the workers that serve the model now, each once."""
    found: list[Mapping[str, Any] | None] = []
    for worker in await services.catalog.workers():
        is_new = worker.report.image_filter not in found
        if model in worker.models and worker.state is not WorkerState.LOST and is_new:
            found.append(worker.report.image_filter)
    return {"prompt": services.prompts.info, "image": found}


def _document(spec: ModelSpec) -> dict[str, Any]:
    """When a model was made is not known, so `created` is 0."""
    return {
        "id": spec.name,
        "object": "model",
        "created": 0,
        "owned_by": "diffuserve",
        "family": spec.family,
        "defaults": {name: getattr(spec, name) for name in _DEFAULTS},
        "limits": {name: getattr(spec, name) for name in _LIMITS},
    }
