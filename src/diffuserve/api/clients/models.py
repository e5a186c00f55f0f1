"""Served models, in OpenAI's format with further fields."""

from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Response

from diffuserve.api.auth.quota import ClientCaller
from diffuserve.api.door.json_route import JsonRoute
from diffuserve.api.http.openai_errors import OPENAI_ERROR_RESPONSES
from diffuserve.api.http.parts import Uses
from diffuserve.api.http.responses import json_response
from diffuserve.api.reads.adapter_names import AdapterNames
from diffuserve.api.reads.catalog import Catalog
from diffuserve.api.resources.model_resources import model_resource
from diffuserve.api.resources.serializers import filter_resource
from diffuserve.api.submit.prompt_processor import PromptProcessor
from diffuserve.domain.resources.model import ModelList, ModelResource, ModelSafetyResource
from diffuserve.domain.resources.safety import FilterResource
from diffuserve.domain.workers.worker import WorkerState
from diffuserve.jobs.reads.operations import OfferedModel

router = APIRouter(tags=["models"], route_class=JsonRoute)


@dataclass(frozen=True)
class ModelParts:
    """Parts that these routes use."""

    catalog: Catalog
    adapters: AdapterNames
    prompts: PromptProcessor


Used = Annotated[ModelParts, Depends(Uses(ModelParts))]


@router.get("/v1/models", summary="List models", response_model=ModelList, responses=OPENAI_ERROR_RESPONSES)
async def list_models(parts: Used, caller: ClientCaller) -> Response:
    """List the models that workers have offered, and whether they are ready, loading or unavailable."""
    models = await parts.catalog.models()
    resources = [await _resource(parts, name, served, caller.tenant_id) for name, served in models.items()]
    return json_response(ModelList(data=tuple(resources)))


@router.get(
    "/v1/models/{model:path}",
    summary="Get a model",
    response_model=ModelResource,
    responses=OPENAI_ERROR_RESPONSES,
)
async def get_model(
    model: Annotated[str, Path(description="Id of the model, which may contain slashes.")],
    parts: Used,
    caller: ClientCaller,
) -> Response:
    """Get a model that workers have offered, by its name or by another that stands for it."""
    served = await parts.catalog.model(model)
    return json_response(await _resource(parts, served.spec.name, served, caller.tenant_id))


async def _resource(parts: ModelParts, name: str, served: OfferedModel, tenant_id: str) -> ModelResource:
    status, safety = await parts.catalog.status(name), await _safety(parts, name)
    workers = await parts.catalog.workers()
    adapters = await parts.adapters.names_for(tenant_id, served.spec)
    load_seconds = served.fit.load_seconds
    resource = model_resource(served.spec, status, safety, served.tiers, workers, load_seconds, adapters)
    return replace(resource, aliases=parts.catalog.aliases_of(name))


async def _safety(parts: ModelParts, model: str) -> ModelSafetyResource:
    """Collect the filters of this server and of the workers that serve the model, without duplicates."""
    image_filters: list[FilterResource | None] = []
    for worker in await parts.catalog.workers():
        if model in worker.models and worker.state is not WorkerState.LOST:
            image_filter = filter_resource(worker.report.image_filter)
            if image_filter not in image_filters:
                image_filters.append(image_filter)
    prompt_filter = filter_resource(parts.prompts.filter_info)
    return ModelSafetyResource(prompt=prompt_filter, image=tuple(image_filters))
