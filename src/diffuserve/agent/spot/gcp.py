"""Notices of Compute Engine: half a minute before a spot machine is taken away."""

from diffuserve.agent.spot.base import Notice, NoticeKind, Spot
from diffuserve.agent.spot.metadata import LINK_LOCAL, MetadataReply, MetadataService
from diffuserve.domain.errors import ServerUnavailable

_INSTANCE = "/computeMetadata/v1/instance"
_FLAVOR = {"Metadata-Flavor": "Google"}
_WAIT_SECONDS = 60  # for a change; the next request continues to wait


class GcpNotices:
    """The metadata server of Compute Engine, which responds when `preempted` changes.

    It names each value by an `ETag`, so that no change between two looks is missed.
    """

    cloud = Spot.GCP
    pause_seconds = 1.0

    def __init__(self, address: str = LINK_LOCAL) -> None:
        self._service = MetadataService(address, _FLAVOR)
        self._etag: str | None = None

    async def is_spot(self) -> bool:
        return _is_true(await self._get("scheduling/preemptible"))

    async def look(self) -> Notice | None:
        etag, self._etag = self._etag, None  # after an error the value is read anew
        if etag is None:
            reply = await self._get("preempted")
        else:
            wanted = {"wait_for_change": "true", "last_etag": etag, "timeout_sec": str(_WAIT_SECONDS)}
            reply = await self._get("preempted", _WAIT_SECONDS, params=wanted)
        self._etag = reply.headers.get("etag")
        return Notice(kind=NoticeKind.INTERRUPTION, details="preempted") if _is_true(reply) else None

    async def acknowledge(self, notice: Notice) -> None:
        """Do nothing: the machine is taken away at its time."""

    async def close(self) -> None:
        await self._service.close()

    async def _get(
        self, name: str, wait_seconds: float = 0.0, params: dict[str, str] | None = None
    ) -> MetadataReply:
        reply = await self._service.read(f"{_INSTANCE}/{name}", wait_seconds, params=params)
        if reply.headers.get("metadata-flavor") != "Google":
            raise ServerUnavailable("the metadata service is not Google's")
        return reply


def _is_true(reply: MetadataReply) -> bool:
    return reply.text.strip().upper() == "TRUE"
