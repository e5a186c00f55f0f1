"""The server's root: a page for people, and the same for programs."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Header, Request, Response

from diffuserve.api.auth.access import Authenticator
from diffuserve.api.auth.dependencies import BaseUrl, RequireRole
from diffuserve.api.config import API_VERSION, ApiConfig
from diffuserve.api.door.json_route import JsonRoute
from diffuserve.api.http.negotiation import prefers_html
from diffuserve.api.http.parts import Uses
from diffuserve.api.http.responses import json_response
from diffuserve.api.reads.catalog import Catalog
from diffuserve.api.submit.prompt_processor import PromptProcessor
from diffuserve.domain.errors import Forbidden, Unauthorized
from diffuserve.domain.resource_base import Resource
from diffuserve.domain.tenant import Role
from diffuserve.domain.workers.readiness import why_not_ready
from diffuserve.web.pages import Pages

router = APIRouter(tags=["operations"], route_class=JsonRoute)


@dataclass(frozen=True)
class HomeParts:
    """Parts that these routes use."""

    config: ApiConfig
    pages: Pages
    catalog: Catalog
    authenticator: Authenticator
    prompts: PromptProcessor


Used = Annotated[HomeParts, Depends(Uses(HomeParts))]


_require_client = RequireRole(Role.TENANT, Role.OPERATOR)


@dataclass(frozen=True, kw_only=True)
class VersionResource(Resource):
    """Versions of the server."""

    version: str
    api_version: str = field(metadata={"description": "Beginning of the paths of the API."})
    commit: str | None = field(metadata={"description": "Commit of the source code, where it is known."})


@dataclass(frozen=True, kw_only=True)
class ServerResource(Resource):
    """Description of the server and of its parts."""

    name: Literal["diffuserve"] = "diffuserve"
    version: str
    api_version: str
    status: Literal["ready", "not_ready"] = field(
        metadata={"description": "`ready` while a worker runs jobs, or would."}
    )
    reason: str | None = field(metadata={"description": "Why it is not ready."})
    requires_key: bool
    expands_prompts: bool = field(
        metadata={"description": "True if a language model expands prompts with `expand_prompt`."}
    )
    models: tuple[str, ...] | None = field(
        metadata={"description": "Ids of the models; null without the API key that shows them."}
    )
    default_model: str | None = field(
        metadata={"description": "Model of a job that names none; null where a job has to name one."}
    )
    urls: dict[str, str | None]


@router.get("/version", summary="Get the version of the server", response_model=VersionResource)
async def get_version(parts: Used) -> Response:
    """Get the version of the server and of its API. Needs no key."""
    config = parts.config
    return json_response(
        VersionResource(version=config.version, api_version=API_VERSION, commit=config.commit)
    )


@router.get(
    "/",
    summary="See what this server is",
    response_model=ServerResource,
    responses={200: {"content": {"text/html": {}}}},
)
async def get_home(
    request: Request,
    parts: Used,
    base_url: BaseUrl,
    accept: Annotated[str, Header(description="`text/html` for a page, else JSON.")] = "",
) -> Response:
    """See what this server is, whether it is ready, and how to use it. Needs no key."""
    if prefers_html(accept):
        return await parts.pages.index(request)
    not_ready = why_not_ready(await parts.catalog.workers())
    models = await _visible_models(parts, request)
    server = ServerResource(
        version=parts.config.version,
        api_version=API_VERSION,
        status="ready" if not_ready is None else "not_ready",
        reason=not_ready,
        requires_key=not await parts.authenticator.is_open(),
        expands_prompts=parts.prompts.expander is not None,
        models=models,
        default_model=None if models is None else await parts.catalog.default_model(),
        urls=_urls(base_url, has_docs=parts.config.api_docs),
    )
    return json_response(server, headers={"vary": "accept, authorization, cookie"})


async def _visible_models(parts: HomeParts, request: Request) -> tuple[str, ...] | None:
    """Return the ids of the models, `None` if the caller may not list them."""
    try:
        await _require_client(request)
    except (Unauthorized, Forbidden):
        return None
    return tuple(await parts.catalog.models())


def _urls(base: str, *, has_docs: bool) -> dict[str, str | None]:
    return {
        "jobs": f"{base}/v1/jobs",
        "models": f"{base}/v1/models",
        "images": f"{base}/v1/images/generations",
        "edits": f"{base}/v1/images/edits",
        "files": f"{base}/v1/files",
        "version": f"{base}/version",
        "ready": f"{base}/readyz",
        "docs": f"{base}/docs" if has_docs else None,
        "openapi": f"{base}/openapi.json" if has_docs else None,
    }
