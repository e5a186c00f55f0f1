"""A worker's place among those that the control plane knows."""

import asyncio
import logging
from collections.abc import Callable

from diffuserve.client.leases import LeaseClient
from diffuserve.domain.errors import DiffuserveError, ServerUnavailable
from diffuserve.domain.worker import Registered, Registration, check_times
from diffuserve.worker.config import WorkerConfig
from diffuserve.worker.messages import Hello
from diffuserve.worker.reports import registration

log = logging.getLogger(__name__)


class Membership:
    """Registers once the model is known, and again after the control plane has forgotten us.

    `on_refused` is called when there is no use in trying.
    """

    def __init__(self, config: WorkerConfig, client: LeaseClient, on_refused: Callable[[], None]) -> None:
        self._config = config
        self._client = client
        self._on_refused = on_refused
        self._offer: Registration | None = None
        self._is_introduced = asyncio.Event()
        self._registered: Registered | None = None
        self._is_registered = asyncio.Event()

    @property
    def offer(self) -> Registration:
        """What was said when registering."""
        assert self._offer is not None
        return self._offer

    @property
    def model(self) -> str:
        return str(self.offer.models[0].spec["name"])

    @property
    def heartbeat_seconds(self) -> float:
        assert self._registered is not None
        return self._config.heartbeat_seconds or self._registered.heartbeat_seconds

    @property
    def is_registered(self) -> bool:
        return self._is_registered.is_set()

    def introduce(self, hello: Hello) -> None:
        """The first engine's model; later engines have the same."""
        if self._offer is None:
            self._offer = registration(self._config, hello)
            self._is_introduced.set()

    async def run(self) -> None:
        """Patiently: the engine loads its model meanwhile."""
        await self._is_introduced.wait()
        while not self.is_registered:
            try:
                registered = await self._client.register(self.offer)
                check_times(registered.lease_seconds, self._config.heartbeat_seconds or 0.0)
            except ServerUnavailable as error:
                log.warning("cannot register yet: %s", error)
            except DiffuserveError as error:  # a wrong key, most likely
                log.error("this worker cannot join: %s", error)
                self._on_refused()
                return
            else:
                log.info("registered as %s at %s", registered.worker_id, self._config.server)
                self._registered = registered
                self._is_registered.set()

    async def worker_id(self) -> str:
        await self._is_registered.wait()
        assert self._registered is not None
        return self._registered.worker_id

    async def renew(self, worker_id: str) -> None:
        """The control plane has forgotten `worker_id`; what we hold is safe by its tokens."""
        if self._registered is None or self._registered.worker_id != worker_id or not self.is_registered:
            return  # another loop has heard it first
        log.warning("the control plane does not know this worker any more; registering again")
        self._is_registered.clear()
        await self.run()
