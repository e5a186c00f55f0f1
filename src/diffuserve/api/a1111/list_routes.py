"""AUTOMATIC1111's routes that list what there is, and its options, of which the model is one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response
from starlette.exceptions import HTTPException

from diffuserve.api.a1111.chosen_models import ChosenModels
from diffuserve.api.a1111.drawing_routes import without_hash
from diffuserve.api.a1111.samplers import SAMPLERS, SCHEDULERS, known_names
from diffuserve.api.auth.access import Caller
from diffuserve.api.auth.dependencies import key_of
from diffuserve.api.auth.quota import ClientCaller
from diffuserve.api.door.json_route import JsonRoute
from diffuserve.api.http.parts import Uses
from diffuserve.api.http.responses import json_response
from diffuserve.api.reads.adapter_names import AdapterNames
from diffuserve.api.reads.catalog import Catalog
from diffuserve.domain.errors import DiffuserveError, InvalidParams
from diffuserve.domain.jobs.job import IMAGE_GENERATE
from diffuserve.domain.jobs.kinds import KINDS
from diffuserve.domain.models.spec import ModelSpec

router = APIRouter(tags=["a1111"], route_class=JsonRoute)

_NONE_HERE = (
    "sd-vae",
    "hypernetworks",
    "face-restorers",
    "realesrgan-models",
    "latent-upscale-modes",
    "prompt-styles",
    "script-info",
    "extensions",
)
_NOTHING_TO_DO = ("refresh-checkpoints", "refresh-loras", "refresh-vae", "refresh-embeddings")
_NOT_DONE = {
    "extra-single-image": "this server upscales no images",
    "extra-batch-images": "this server upscales no images",
    "interrogate": "this server describes no images",
    "unload-checkpoint": "workers load and unload models by themselves",
    "reload-checkpoint": "workers load and unload models by themselves",
    "server-stop": "an operator stops it",
    "server-restart": "an operator restarts it",
    "server-kill": "an operator stops it",
}


@dataclass(frozen=True)
class OfferParts:
    """Parts that these routes use."""

    catalog: Catalog
    adapters: AdapterNames
    chosen: ChosenModels


Used = Annotated[OfferParts, Depends(Uses(OfferParts))]


@router.get("/internal/ping", summary="Check that the server answers")
async def ping() -> Response:
    """Respond with an empty object, to anybody."""
    return json_response({})


@router.get("/sdapi/v1/sd-models", summary="List models")
async def list_models(parts: Used, _caller: ClientCaller) -> Response:
    """List the models that make images."""
    return json_response([_model(spec.name) for spec in await _specs(parts)])


def _model(name: str) -> dict[str, Any]:
    shown = {"title": name, "model_name": name, "filename": name}
    return {**shown, "hash": None, "sha256": None, "config": None}


@router.get("/sdapi/v1/samplers", summary="List samplers")
async def list_samplers(parts: Used, _caller: ClientCaller) -> Response:
    """List the samplers that a model here can use; one that a model cannot is named as ignored."""
    available = {sampler for spec in await _specs(parts) for sampler in spec.samplers}
    names = known_names(available) or list(SAMPLERS)[:1]
    return json_response([{"name": name, "aliases": [], "options": {}} for name in names])


@router.get("/sdapi/v1/schedulers", summary="List schedules")
async def list_schedulers(_caller: ClientCaller) -> Response:
    """List the schedules of samplers."""
    unknown = {"aliases": None, "default_rho": -1.0, "need_inner_model": False}
    return json_response([{"name": name, "label": label, **unknown} for name, label in SCHEDULERS.items()])


@router.get("/sdapi/v1/loras", summary="List adapters")
async def list_loras(parts: Used, caller: ClientCaller) -> Response:
    """List the adapters that the caller's prompts may name as `<lora:NAME:WEIGHT>`."""
    names: set[str] = set()
    for spec in await _specs(parts):
        names.update(await parts.adapters.names_for(caller.tenant_id, spec))
    return json_response(
        [{"name": name, "alias": name, "path": name, "metadata": {}} for name in sorted(names)]
    )


@router.get("/sdapi/v1/upscalers", summary="List upscalers, of which there are none")
async def list_upscalers(_caller: ClientCaller) -> Response:
    """List the upscaler that does nothing, which clients expect."""
    nothing = {"model_name": None, "model_path": None, "model_url": None, "scale": 1}
    return json_response([{"name": "None", **nothing}])


@router.get("/sdapi/v1/embeddings", summary="List embeddings, of which there are none")
async def list_embeddings(_caller: ClientCaller) -> Response:
    """List no embeddings."""
    return json_response({"loaded": {}, "skipped": {}})


@router.get("/sdapi/v1/scripts", summary="List scripts")
async def list_scripts(parts: Used, _caller: ClientCaller) -> Response:
    """List ControlNet, if a model here has any."""
    has_any = any(spec.controlnets or spec.has_control_image for spec in await _specs(parts))
    scripts = ["controlnet"] if has_any else []
    return json_response({"txt2img": scripts, "img2img": scripts})


@router.get("/controlnet/model_list", summary="List ControlNets")
async def list_controlnets(parts: Used, _caller: ClientCaller) -> Response:
    """List the ControlNets of all models."""
    names = sorted({name for spec in await _specs(parts) for name in spec.controlnets})
    return json_response({"model_list": names})


@router.get("/controlnet/module_list", summary="List preprocessors, of which there are none")
async def list_preprocessors(_caller: ClientCaller) -> Response:
    """List none: clients send edges, depth or a pose as the ControlNet expects it."""
    return json_response({"module_list": ["none"], "module_detail": {}})


@router.get(
    "/sdapi/v1/cmd-flags", name="get_flags", summary="Get the server's flags, of which there are none"
)
@router.get("/sdapi/v1/memory", name="get_memory", summary="Get the memory in use, which is not told")
async def get_nothing(_caller: ClientCaller) -> Response:
    """Return an empty object."""
    return json_response({})


@router.get("/sdapi/v1/options", summary="Get the options")
async def get_options(parts: Used, caller: ClientCaller) -> Response:
    """Return the model that the key has chosen, or else the default, and options that clients read."""
    return json_response(
        {
            "sd_model_checkpoint": await _current_model(parts, caller),
            "sd_checkpoint_hash": None,
            "sd_vae": "Automatic",
            "samples_format": "png",
            "CLIP_stop_at_last_layers": 1,
            "live_previews_enable": True,
        }
    )


@router.post("/sdapi/v1/options", summary="Choose the model of later requests")
async def set_options(body: dict[str, Any], parts: Used, caller: ClientCaller) -> Response:
    """Remember the model for this key alone, until the server restarts; other options change nothing."""
    name = body.get("sd_model_checkpoint")
    if name is not None:
        if not isinstance(name, str):
            raise InvalidParams("sd_model_checkpoint", str(name), "must be the title of a model")
        served = await parts.catalog.pick(without_hash(name))
        parts.chosen.choose(caller.tenant_id, key_of(caller), served.spec.name)
    return json_response(None)


async def _current_model(parts: OfferParts, caller: Caller) -> str | None:
    if chosen := parts.chosen.of(caller.tenant_id, key_of(caller)):
        return chosen
    try:
        return (await parts.catalog.pick(None)).spec.name
    except DiffuserveError:  # several models and no default, or none yet
        return next((spec.name for spec in await _specs(parts)), None)


async def _specs(parts: OfferParts) -> Sequence[ModelSpec]:
    """Return the models that make images, by name."""
    served = (await parts.catalog.models()).values()
    specs = [each.spec for each in served if KINDS[IMAGE_GENERATE].is_made_by(each.spec)]
    return sorted(specs, key=lambda spec: spec.name)


@router.get("/sdapi/v1/{what}", summary="List what this server has none of", include_in_schema=False)
async def list_none(what: str, _caller: ClientCaller) -> Response:
    """Return an empty list where clients expect one. Raise `HTTPException` 404 for other paths."""
    if what in _NONE_HERE:
        return json_response([])
    raise HTTPException(404, f"/sdapi/v1/{what} is not implemented")


@router.post("/sdapi/v1/{what}", summary="Do what this server need not do", include_in_schema=False)
async def do_nothing(what: str, _caller: ClientCaller) -> Response:
    """Respond as after it was done, or say why it is not. Raise `HTTPException` 501 and 404."""
    if what in _NOTHING_TO_DO:
        return json_response(None)
    if reason := _NOT_DONE.get(what):
        raise HTTPException(501, f"/sdapi/v1/{what} is not done here: {reason}")
    raise HTTPException(404, f"/sdapi/v1/{what} is not implemented")
