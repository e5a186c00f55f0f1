"""The page that shows the OpenAPI document, without anything from another server.

Its script is that of Swagger UI, as the package `fastapi-offline` brings it.
"""

import base64
import hashlib
from functools import cache

from fastapi import APIRouter, FastAPI
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles

_ASSETS = ("fastapi_offline", "static")
# `validatorUrl` would send the document's address to a service of Swagger's makers.
_START = """
SwaggerUIBundle({url: "openapi.json", dom_id: "#swagger-ui", deepLinking: true, validatorUrl: null});
"""
_PAGE = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>diffuserve: API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/assets/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/assets/swagger-ui-bundle.js"></script>
<script>{_START}</script>
</body>
</html>
"""
_START_HASH = base64.b64encode(hashlib.sha256(_START.encode()).digest()).decode()
_HEADERS = {
    # Swagger UI writes styles into the page.
    "content-security-policy": f"default-src 'none'; script-src 'self' 'sha256-{_START_HASH}'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def add_documents(app: FastAPI) -> None:
    """Serve the page and its scripts, which are no part of the API."""
    app.router.routes.extend(_routes())


@cache
def _routes() -> list[BaseRoute]:
    """Return the routes, which all applications of a process share."""
    router = APIRouter(include_in_schema=False)
    router.add_api_route("/docs", get_documents)
    router.add_api_route("/redoc", redirect_to_documents)
    return [*router.routes, Mount("/docs/assets", StaticFiles(packages=[_ASSETS]))]


async def get_documents() -> HTMLResponse:
    return HTMLResponse(_PAGE, headers=_HEADERS)


async def redirect_to_documents() -> RedirectResponse:
    return RedirectResponse("docs")
