"""The page for people: static modules of a browser's own language, which talk to the API alone."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from string import Template

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute

from diffuserve.web.assets import load_assets

# Views of router.js and their modules; "/" is negotiated by the API.
_VIEWS = {
    "/gallery": "views/gallery.js",
    "/gallery/{job_id}": "views/job.js",
    "/ops": "views/operations.js",
}
_HOME = "views/playground.js"
_POLICY = (
    "default-src 'self'; connect-src 'self'; img-src 'self' data: blob:{others}; "
    "media-src 'self' blob:{others}; object-src 'none'; base-uri 'self'; form-action 'self'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
    "vary": "accept, authorization, cookie",
}


@dataclass(frozen=True)
class Pages:
    """The page at its paths.

    `media_origins` lists the other origins that may serve images and clips, such as that of a bucket.
    """

    media_origins: Callable[[], Awaitable[Sequence[str]]]

    async def index(self, request: Request, status: int = 200) -> HTMLResponse:
        """Return the page, in which the browser chooses the view by the path."""
        base = request.scope.get("root_path", "").rstrip("/") + "/"
        view = _VIEWS.get(getattr(request.scope.get("route"), "path", ""), _HOME)
        page = _page_of(view).substitute(base=escape(base))
        others = "".join(f" {origin}" for origin in await self.media_origins())
        policy = {"content-security-policy": _POLICY.format(others=others)}
        return HTMLResponse(page, status, _HEADERS | policy)


@cache
def _page_of(view: str) -> Template:
    """Return the page that loads this view's module first, without its `$base`."""
    assets = load_assets()
    folder = f"web/{assets.version}"
    styles = (f'<link rel="stylesheet" href="{folder}/{name}">' for name in assets.styles())
    modules = assets.modules("main.js", view)
    preloads = (f'<link rel="modulepreload" href="{folder}/{name}">' for name in modules)
    values = {"folder": folder, "styles": "\n".join(styles), "preloads": "\n".join(preloads)}
    return Template(Template(assets.index).safe_substitute(values))


def add_pages(app: FastAPI, pages: Pages) -> None:
    """Serve the page's views and its modules, which are no part of the API."""
    app.state.pages = pages
    app.router.routes.extend(_routes())


@cache
def _routes() -> list[BaseRoute]:
    """Return the routes, which all applications of a process share."""
    router = APIRouter(include_in_schema=False)
    for path in _VIEWS:
        router.add_api_route(path, get_view)
    router.add_api_route("/web/{version}/{name:path}", get_asset)
    return list(router.routes)


async def get_view(request: Request) -> Response:
    """Return the page, whose view the browser chooses by the path."""
    pages: Pages = request.app.state.pages
    return await pages.index(request)


async def get_asset(version: str, name: str, request: Request) -> Response:
    """Return a file of the page, if the page is of this server's version."""
    assets = load_assets()
    asset = assets.files.get(name)
    if asset is None or version != assets.version:
        raise HTTPException(404)
    return asset.response(request.headers)
