"""What a request says of its submission beside its body, by whichever door it comes."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header

from diffuserve.api.auth.dependencies import BaseUrl
from diffuserve.api.http.storable import Storable

IdempotencyKey = Annotated[
    Annotated[str, Storable] | None,
    Header(min_length=1, max_length=255, description="The same key and body give the same job or batch."),
]


@dataclass(frozen=True)
class RequestOrigin:
    """Where the client finds this server, and the key by which a retry gives the same job."""

    base_url: BaseUrl
    idempotency_key: IdempotencyKey = None

    @property
    def may_return(self) -> bool:
        """True if the client can ask for the job again, so that it outlives the connection."""
        return self.idempotency_key is not None


Origin = Annotated[RequestOrigin, Depends()]
