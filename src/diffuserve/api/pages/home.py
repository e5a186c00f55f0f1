"""The page at the server's root, for people: it needs nothing from elsewhere and runs no script."""

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from string import Template

from diffuserve.domain.model_spec import ModelSpec

_FOLDER = files("diffuserve.api.pages")
_PAGE = Template((_FOLDER / "home.html").read_text("utf-8"))
_STYLE = (_FOLDER / "home.css").read_text("utf-8")
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
HEADERS = {
    "content-security-policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "vary": "accept, authorization",
}
_REFRESH = '<meta http-equiv="refresh" content="5">'
_DOCS = '<li><a href="{base}/docs">/docs</a>: every route, to try out</li>\n'
_ROW = "<tr><td><code>{name}</code></td><td>{size}</td><td>{steps}</td></tr>"
_TABLE = "<table><tr><th>id</th><th>size</th><th>steps</th></tr>{rows}</table>"


@dataclass(frozen=True, kw_only=True)
class HomePage:
    """Content of the page.

    `not_ready` is why no worker would run a job now, `None` if one would. `models` are `None` for someone
    without the API key that shows them.
    """

    base_url: str
    version: str
    not_ready: str | None
    needs_key: bool
    has_docs: bool
    models: Sequence[ModelSpec] | None

    def html(self) -> str:
        """Return the page. Names and URLs may be a client's, so all are escaped."""
        base = escape(self.base_url)
        return _PAGE.substitute(
            style=_STYLE,
            refresh="" if self.not_ready is None else _REFRESH,
            version=escape(self.version),
            state="Ready." if self.not_ready is None else _marked(f"Jobs wait: {self.not_ready}."),
            models=self._models(),
            base=base,
            key=" -H 'authorization: Bearer KEY'" if self.needs_key else "",
            option=" --key KEY" if self.needs_key else "",
            needs_key=", with an API key" if self.needs_key else "",
            docs=_DOCS.format(base=base) if self.has_docs else "",
        )

    def _models(self) -> str:
        if self.models is None:
            return "<p>They are shown to those who have an API key.</p>"
        if not self.models:
            return "<p>No worker has offered one yet.</p>"
        rows = [
            _ROW.format(
                name=escape(spec.name), size=f"{spec.width}×{spec.height}", steps=spec.num_inference_steps
            )
            for spec in self.models
        ]
        return _TABLE.format(rows="".join(rows))


def _marked(text: str) -> str:
    """Return a text as HTML, in which words between backticks are code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))
