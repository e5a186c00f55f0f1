"""Limits on responses that are held open: event streams, WebSockets and waits for a job."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from diffuserve.domain.errors import TooManyWaits
from diffuserve.domain.tenant import Plan

_RETRY_SECONDS = 5.0


class OpenWaits:
    """Counts by tenant the responses that this process holds open."""

    def __init__(self) -> None:
        self._num_open: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """Number of responses that are open now, of all tenants."""
        return self._num_open.total()

    @contextmanager
    def slot(self, tenant_id: str, plan: Plan) -> Iterator[None]:
        """Count one more while the context is open. Raise `TooManyWaits` at the limit of the plan."""
        limit = plan.max_waits
        if limit is not None and self._num_open[tenant_id] >= limit:
            raise TooManyWaits(
                f"tenant {tenant_id!r} has {limit:,} streams and waits open, as many as its plan "
                f"{plan.name!r} allows; end some of them first, or follow jobs by webhooks",
                retry_after=_RETRY_SECONDS,
            )
        self._num_open[tenant_id] += 1
        try:
            yield
        finally:
            self._num_open[tenant_id] -= 1
            if not self._num_open[tenant_id]:
                del self._num_open[tenant_id]
