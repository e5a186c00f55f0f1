"""Notices of EC2: two minutes before a spot machine is taken away, and hints that it may be."""

from diffuserve.agent.spot.base import Notice, NoticeKind, Spot
from diffuserve.agent.spot.metadata import LINK_LOCAL, MetadataReply, MetadataService, shown
from diffuserve.domain.errors import ServerUnavailable

_TOKEN = "/latest/api/token"  # noqa: S105 (a path)
_TTL = {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}
_TOKEN_HEADER = "X-aws-ec2-metadata-token"  # noqa: S105 (a header's name)
_LIFE_CYCLE = "/latest/meta-data/instance-life-cycle"
_LIFE_CYCLES = ("on-demand", "spot", "scheduled", "capacity-block")
_ACTION = "/latest/meta-data/spot/instance-action"
_REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
_EXPIRED, _ABSENT = 401, 404


class AwsNotices:
    """The instance metadata service of EC2, version 2: a session token goes with every request."""

    cloud = Spot.AWS
    pause_seconds = 5.0

    def __init__(self, address: str = LINK_LOCAL) -> None:
        self._service = MetadataService(address)
        self._token: str | None = None

    async def is_spot(self) -> bool:
        reply = await self._get(_LIFE_CYCLE)
        if reply is None or reply.text not in _LIFE_CYCLES:
            raise ServerUnavailable("the metadata service is not that of EC2")
        return reply.text == "spot"

    async def look(self) -> Notice | None:
        if action := await self._get(_ACTION):
            said = action.object
            details = f"{shown(said.get('action'))} at {shown(said.get('time'))}"
            return Notice(kind=NoticeKind.INTERRUPTION, details=details)
        if hint := await self._get(_REBALANCE):
            return Notice(kind=NoticeKind.REBALANCE, details=f"at {shown(hint.object.get('noticeTime'))}")
        return None

    async def acknowledge(self, notice: Notice) -> None:
        """Do nothing: the machine is taken away at its time."""

    async def close(self) -> None:
        await self._service.close()

    async def _get(self, path: str) -> MetadataReply | None:
        """Return the response, `None` for what is not there; an expired token is replaced once."""
        is_new = self._token is None
        reply = await self._send(path)
        if reply.status == _EXPIRED and not is_new:
            self._token = None
            reply = await self._send(path)
        if reply.status == _ABSENT:
            return None
        if reply.status != 200:
            self._token = None
            raise ServerUnavailable(f"the metadata service of EC2 responds to {path} with {reply.status}")
        return reply

    async def _send(self, path: str) -> MetadataReply:
        token = self._token = self._token or await self._new_token()
        return await self._service.ask("GET", path, headers={_TOKEN_HEADER: token})

    async def _new_token(self) -> str:
        reply = await self._service.ask("PUT", _TOKEN, headers=_TTL)
        if reply.status != 200 or not reply.text.isascii() or not reply.text.isprintable():
            raise ServerUnavailable(f"the metadata service of EC2 gives no token ({reply.status})")
        return reply.text
