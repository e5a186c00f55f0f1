"""The page for people: static modules of a browser's own language, which talk to the API alone."""

from html import escape
from importlib.resources import files
from string import Template

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse
from starlette.staticfiles import StaticFiles

_FOLDER = files("diffuserve.web") / "static"
_INDEX = Template((_FOLDER / "index.html").read_text("utf-8"))
_PATHS = ("/gallery", "/gallery/{job_id}", "/ops")  # views of router.js; "/" is negotiated by the API
HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:; "
    "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "vary": "accept, authorization",
}


def index_page(request: Request) -> HTMLResponse:
    """Return the page, in which the browser chooses the view by the path."""
    base = request.scope.get("root_path", "").rstrip("/") + "/"
    return HTMLResponse(_INDEX.substitute(base=escape(base)), headers=HEADERS)


def add_pages(app: FastAPI) -> None:
    """Serve the page's views and its modules, which are no part of the API."""
    for path in _PATHS:
        app.add_api_route(path, index_page, include_in_schema=False)
    app.mount("/web", StaticFiles(packages=[("diffuserve.web", "static")]))
