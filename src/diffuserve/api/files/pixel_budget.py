"""The pixel budget of a tenant's plan: the cost of decoding and judging an image grows with its pixels."""

from dataclasses import dataclass

from diffuserve.domain.errors import RateLimited
from diffuserve.domain.tenant import Plan
from diffuserve.quotas.base import Quotas, Rate

_MINUTE = 60.0


@dataclass(frozen=True)
class PixelBudget:
    """Counts pixels after reading, as they are not known before; a burst may use a minute's budget."""

    quotas: Quotas

    async def check(self, tenant_id: str, plan: Plan) -> None:
        """Raise `RateLimited` while earlier images have used up the budget."""
        if (rate := _rate(plan)) is None:
            return
        allowance = await self.quotas.take(_account(tenant_id), rate, 0)
        if not allowance.is_granted:
            raise RateLimited(
                f"tenant {tenant_id!r} exceeds the {plan.input_pixels_per_minute:,.0f} pixels of images per "
                f"minute of its plan; retry after {allowance.retry_after:.3g} s, or send smaller images",
                retry_after=allowance.retry_after,
            )

    async def charge(self, tenant_id: str, plan: Plan, num_pixels: int) -> None:
        """Count the pixels that were read."""
        if (rate := _rate(plan)) is not None:
            await self.quotas.take(_account(tenant_id), rate, num_pixels)


def _rate(plan: Plan) -> Rate | None:
    if plan.input_pixels_per_minute is None:
        return None
    return Rate(plan.input_pixels_per_minute / _MINUTE, window=_MINUTE)


def _account(tenant_id: str) -> str:
    return f"{tenant_id}/pixels"
