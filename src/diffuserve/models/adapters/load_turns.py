"""Decides whose adapters get room and are loaded next, so that no tenant waits for the many of another."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

MAX_OVERTAKEN = 8
"""Requests that may get room before one for which there was none yet."""

_MAX_REMEMBERED = 64  # tenants


class AdapterTurn(NamedTuple):
    """An adapter that is to be loaded, and the tenant whose turn that is."""

    digest: str
    tenant: str


@dataclass(eq=False)
class AdapterClaim:
    """A request's adapters, by digest with their bytes. It `has_room` once they may all be in memory.

    It was `overtaken` by so many requests that came later and needed less room.
    """

    tenant: str
    sizes: Mapping[str, int]
    has_room: bool = False
    overtaken: int = 0


@dataclass
class LoadTurns:
    """Claims in order of arrival, and the tenants in the order in which they had their last turn to load."""

    max_bytes: int
    claims: list[AdapterClaim] = field(default_factory=list)
    served: list[str] = field(default_factory=list)

    @property
    def pinned(self) -> Mapping[str, int]:
        """The adapters of requests that have room."""
        return {
            digest: size for claim in self.claims if claim.has_room for digest, size in claim.sizes.items()
        }

    def give_room(self) -> None:
        """Give room for all of their adapters, or none, to claims in the fairest order.

        One that does not fit is passed over a few times at most; then the others wait for it.
        """
        while (chosen := self._next_with_room()) is not None:
            chosen.has_room = True
            for claim in self.claims[: self.claims.index(chosen)]:
                claim.overtaken += not claim.has_room

    def next_load(
        self, kept: Collection[str], loading: Mapping[str, str], num_loaders: int
    ) -> "AdapterTurn | None":
        """Return what is loaded next, and count the turn; `None` if there is nothing, or no loader.

        `loading` has the tenant of each adapter that is being loaded: no tenant has all loaders.
        """
        busy = Counter(loading.values())
        most = max(1, num_loaders - 1)
        missing = [
            (self._last_turn(claim.tenant), index, place, digest)
            for index, claim in enumerate(self.claims)
            if claim.has_room and busy[claim.tenant] < most
            for place, digest in enumerate(claim.sizes)
            if digest not in kept and digest not in loading
        ]
        if len(loading) >= num_loaders or not missing:
            return None
        _, index, _, digest = min(missing)
        tenant = self.claims[index].tenant
        self.served = [*(each for each in self.served if each != tenant), tenant][-_MAX_REMEMBERED:]
        return AdapterTurn(digest, tenant)

    def _next_with_room(self) -> AdapterClaim | None:
        pinned = self.pinned
        free = self.max_bytes - sum(pinned.values())
        waiting = sorted(
            (claim for claim in self.claims if not claim.has_room),
            key=lambda claim: claim.overtaken < MAX_OVERTAKEN,
        )
        for claim in waiting:
            if sum(size for digest, size in claim.sizes.items() if digest not in pinned) <= free:
                return claim
            if claim.overtaken >= MAX_OVERTAKEN:
                return None
        return None

    def _last_turn(self, tenant: str) -> int:
        return self.served.index(tenant) if tenant in self.served else -1
