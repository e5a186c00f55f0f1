"""The table of models that have short names, with their licenses and sizes."""

from collections.abc import Mapping

from diffuserve.models.folders.known_models import KNOWN_MODELS
from reference.markdown import code, table

_HEADINGS = ("name", "hub id", "license", "download", "consent on its page")


def regions() -> Mapping[str, str]:
    """Return the table of known models, in the order of their declarations."""
    rows = [
        (", ".join(map(code, model.names)), code(model.hub_id), model.license, model.size, model.consent)
        for model in KNOWN_MODELS
    ]
    return {"known models": table(_HEADINGS, rows)}
