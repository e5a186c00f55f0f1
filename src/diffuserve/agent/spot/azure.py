"""Notices of Azure: scheduled events, half a minute or more before a spot machine is taken away."""

from collections.abc import Mapping
from typing import Any

from diffuserve.agent.spot.base import Notice, NoticeKind, Spot
from diffuserve.agent.spot.metadata import LINK_LOCAL, MetadataService, shown
from diffuserve.domain.errors import ServerUnavailable

_COMPUTE = "/metadata/instance/compute?api-version=2021-02-01"
_EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
_FIRST_SECONDS = 120.0  # the first request of a machine switches the service on, which takes so long


class AzureNotices:
    """Scheduled events of Azure. Each names its machines, which may be others of the same scale set."""

    cloud = Spot.AZURE
    pause_seconds = 1.0

    def __init__(self, address: str = LINK_LOCAL) -> None:
        self._service = MetadataService(address, {"Metadata": "true"})
        self._name: str | None = None
        self._wait_seconds = _FIRST_SECONDS

    async def is_spot(self) -> bool:
        return (await self._compute()).get("priority") == "Spot"

    async def look(self) -> Notice | None:
        name = self._name = self._name or str((await self._compute()).get("name"))
        events = (await self._service.read(_EVENTS, self._wait_seconds)).object.get("Events")
        self._wait_seconds = 0.0
        for event in events if isinstance(events, list) else ():
            if isinstance(event, dict) and _is_end_of(name, event):
                details = f"not before {shown(event.get('NotBefore'))}"
                event_id = str(event.get("EventId", ""))
                return Notice(kind=NoticeKind.INTERRUPTION, details=details, event_id=event_id)
        return None

    async def acknowledge(self, notice: Notice) -> None:
        """Let the machine be taken away now, as it has no more work."""
        wanted = {"StartRequests": [{"EventId": notice.event_id}]}
        reply = await self._service.ask("POST", _EVENTS, json=wanted)
        if reply.status != 200:
            raise ServerUnavailable(f"Azure does not accept the acknowledgement ({reply.status})")

    async def close(self) -> None:
        await self._service.close()

    async def _compute(self) -> dict[str, Any]:
        return (await self._service.read(_COMPUTE)).object


def _is_end_of(name: str, event: Mapping[str, Any]) -> bool:
    """Return whether an event takes this machine away; names do not tell upper case from lower."""
    resources = event.get("Resources")
    named = {str(resource).lower() for resource in resources} if isinstance(resources, list) else set()
    return event.get("EventType") == "Preempt" and name.lower() in named
