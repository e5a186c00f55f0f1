"""Asks the control plane for the peers of engines that fetch a model."""

import asyncio
from collections.abc import Callable

from diffuserve.agent.engines.served_models import ServedModels
from diffuserve.agent.registration.membership import Membership
from diffuserve.client.leases import LeaseClient
from diffuserve.domain.errors import DiffuserveError
from diffuserve.protocol.peer_messages import PeersTold

_ASK_SECONDS = 1.0


class PeersLoop:
    """Passes the control plane's advice to engines while they fetch their models."""

    def __init__(self, client: LeaseClient, membership: Membership, models: ServedModels) -> None:
        self._client, self._membership, self._models = client, membership, models

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_ASK_SECONDS)
            for engine in self._models.with_peers:
                peer = engine.peer_report
                if peer is not None and not peer.is_complete:
                    await self._advise(peer.model, engine.tell_peers)

    async def _advise(self, model: str, send: Callable[[PeersTold], None]) -> None:
        """Ask once; without an answer the engine keeps the previous advice."""
        try:
            advice = await self._client.peers(await self._membership.worker_id(), model)
        except DiffuserveError:
            return
        send(PeersTold(advice=advice))
