"""Values that shells complete."""

from diffuserve.domain.requests.samplers import SAMPLERS
from diffuserve.models.bundled import bundled_models
from diffuserve.models.folders import hub
from diffuserve.models.folders.local_models import local_models
from diffuserve.models.folders.names import ALIASES, HUB_COMMITS


def model_names(incomplete: str) -> list[str]:
    """Return the names of models that begin so: bundled, imported, well-known and downloaded ones."""
    known = dict.fromkeys(
        (*bundled_models(), *local_models(), *ALIASES, *HUB_COMMITS, *hub.cached_repositories())
    )
    return [name for name in known if name.startswith(incomplete)]


def sampler_names(incomplete: str) -> list[str]:
    """Return the names of samplers that begin so."""
    return [name for name in SAMPLERS if name.startswith(incomplete)]
