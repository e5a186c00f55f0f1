"""The choice of the deliveries that a sender starts next, round-robin over tenants: a pure function."""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

from diffuserve.domain.jobs.webhook import Delivery


@dataclass(frozen=True, kw_only=True)
class SendLimits:
    """Limits of one sender's deliveries in flight: in total, and per tenant, host and endpoint.

    A receiver that hangs occupies its slot until the timeout. An endpoint's limit leaves room for the other
    endpoints of its tenant, a tenant's limit for the other tenants, and a host's limit for the other hosts
    when a host that many tenants use hangs.
    """

    total: int
    per_tenant: int = 16
    per_host: int = 32
    per_endpoint: int = 8


@dataclass(frozen=True)
class Full:
    """Tenants, hosts and endpoints that are at their limits."""

    tenants: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    endpoints: frozenset[str] = frozenset()


class Load:
    """Deliveries in flight, counted by tenant, host and endpoint."""

    def __init__(self, in_flight: Iterable[Delivery], limits: SendLimits) -> None:
        self._limits = limits
        self.tenants: Counter[str] = Counter()
        self._hosts: Counter[str] = Counter()
        self._endpoints: Counter[str] = Counter()
        self._ids: set[str] = set()
        for delivery in in_flight:
            self.add(delivery)

    @property
    def room(self) -> int:
        """Number of deliveries that may still be started in total."""
        return self._limits.total - len(self._ids)

    def add(self, delivery: Delivery) -> None:
        """Count one more delivery."""
        self._ids.add(delivery.id)
        self.tenants[delivery.tenant_id] += 1
        self._hosts[delivery.host] += 1
        self._endpoints[delivery.endpoint_id] += 1

    def has_room_for(self, delivery: Delivery) -> bool:
        """Return whether a delivery has not been started and fits within the limits."""
        limits = self._limits
        return (
            delivery.id not in self._ids
            and self.room > 0
            and self.tenants[delivery.tenant_id] < limits.per_tenant
            and self._hosts[delivery.host] < limits.per_host
            and self._endpoints[delivery.endpoint_id] < limits.per_endpoint
        )

    @property
    def full(self) -> Full:
        """Tenants, hosts and endpoints at their limits: none of their deliveries can start."""
        limits = self._limits
        return Full(
            _at_least(self.tenants, limits.per_tenant),
            _at_least(self._hosts, limits.per_host),
            _at_least(self._endpoints, limits.per_endpoint),
        )


def choose(waiting: Iterable[Delivery], in_flight: Iterable[Delivery], limits: SendLimits) -> list[Delivery]:
    """Return the deliveries to start now, in their order.

    The tenant with the fewest deliveries in flight goes first, and among equals the one that has waited
    longest. A tenant's deliveries go in the order in which they became due, skipping those without room.
    """
    load = Load(in_flight, limits)
    queues: dict[str, deque[Delivery]] = {}
    for delivery in sorted(waiting, key=_due):
        queues.setdefault(delivery.tenant_id, deque()).append(delivery)
    chosen: list[Delivery] = []
    while queues:
        tenant_id = min(queues, key=lambda name: (load.tenants[name], _due(queues[name][0])))
        delivery = queues[tenant_id].popleft()
        # A delivery without room now has none later either: nothing in flight ends meanwhile.
        if load.has_room_for(delivery):
            load.add(delivery)
            chosen.append(delivery)
        if not queues[tenant_id]:
            del queues[tenant_id]
    return chosen


def _due(delivery: Delivery) -> tuple[float, str]:
    return delivery.next_at or 0.0, delivery.id


def _at_least(counts: Counter[str], limit: int) -> frozenset[str]:
    return frozenset(name for name, count in counts.items() if count >= limit)
