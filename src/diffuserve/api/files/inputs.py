"""Images that requests name: the ids of uploaded files, data URLs and https URLs."""

from diffuserve.api.services import Services
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.params import GenerationParams


async def resolve_inputs(services: Services, tenant_id: str, params: GenerationParams) -> GenerationParams:
    """Return a tenant's parameters with an `InputImage`, without pixels, in place of each image's name.

    Raise `InvalidParams` for a name that leads to no image of the tenant.
    """
    raise InvalidParams("image", len(params.images), "this server takes no images yet")
