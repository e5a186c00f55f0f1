"""The worker's registration with the control plane."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from diffuserve.agent.config import WorkerConfig
from diffuserve.agent.registration.reports import new_registration
from diffuserve.client.leases import LeaseClient
from diffuserve.domain.errors import (
    DiffuserveError,
    Forbidden,
    ModelConflict,
    ServerUnavailable,
    Unauthorized,
)
from diffuserve.domain.jobs.lease_times import check_times
from diffuserve.domain.workers.worker import ModelOffer, Registered, Registration
from diffuserve.protocol.messages import ModelAnnounced
from diffuserve.telemetry import log_context

log = logging.getLogger(__name__)

_CONFLICT_PAUSE_SECONDS = 5.0
_REFUSED_SECONDS = 60.0  # in which a new key may arrive in the file
_LEAVE_SECONDS = 1.0  # leaving only keeps the list of workers clean
_KEY_REMEDY = (
    "give a worker's key with --key-file, --key or DIFFUSERVE_API_KEY; "
    "`diffuserve keys create --role worker` makes one"
)


class Membership:
    """Registers once the models are known, and again after the control plane has forgotten the worker.

    `on_refused` is called when the control plane refuses the worker for good.
    """

    def __init__(
        self, config: WorkerConfig, client: LeaseClient, on_refused: Callable[[], None], is_spot: bool = False
    ) -> None:
        self._config, self._is_spot = config, is_spot
        self._client = client
        self._on_refused = on_refused
        self._registration: Registration | None = None
        self._is_announced = asyncio.Event()
        self._registered: Registered | None = None
        self._is_registered = asyncio.Event()
        self._has_left = False
        self._refused_since: float | None = None

    @property
    def registration(self) -> Registration:
        """The request that registered the worker, which must be registered."""
        assert self._registration is not None
        return self._registration

    @property
    def heartbeat_seconds(self) -> float:
        """The worker's own interval between heartbeats, else the control plane's."""
        assert self._registered is not None
        return self._config.heartbeat_seconds or self._registered.heartbeat_seconds

    @property
    def lease_seconds(self) -> float:
        """Seconds without a heartbeat for which the control plane considers the worker alive."""
        assert self._registered is not None
        return self._registered.lease_seconds

    @property
    def is_registered(self) -> bool:
        return self._is_registered.is_set()

    def announce(self, announced: Sequence[ModelAnnounced]) -> None:
        """Set the models that the worker offers; later engines load the same ones."""
        if self._registration is None:
            self._registration = new_registration(self._config, announced, self._is_spot)
            self._is_announced.set()

    async def run(self) -> None:
        """Register as soon as the models are known, and keep trying until it succeeds.

        The control plane may be unavailable, or other workers still offer an earlier form of the model.
        """
        await self._is_announced.wait()
        while not self.is_registered:
            try:
                registered = await self._client.register(self.registration)
                check_times(registered.lease_seconds, self._config.heartbeat_seconds or 0.0)
            except ServerUnavailable as error:
                log.debug("cannot register yet: %s", error)  # logged as an outage
            except ModelConflict as error:  # in an upgrade of a model the other workers leave
                log.warning("cannot register yet: %s", error)
                await asyncio.sleep(_CONFLICT_PAUSE_SECONDS)
            except DiffuserveError as error:  # most likely a wrong API key
                log.error("this worker cannot join: %s", with_key_remedy(error))
                self._on_refused()
                return
            else:
                log.info("registered as %s at %s", registered.worker_id, self._config.server)
                self._registered = registered
                self._is_registered.set()

    async def worker_id(self) -> str:
        """Wait until the worker is registered; return its id, which the task's log lines show from now on."""
        await self._is_registered.wait()
        assert self._registered is not None
        log_context.bind(worker_id=self._registered.worker_id)
        return self._registered.worker_id

    async def renew(self, worker_id: str) -> None:
        """Register again, as the control plane has forgotten `worker_id`.

        Held leases stay valid by their tokens.
        """
        if self._has_left:
            return
        if self._registered is None or self._registered.worker_id != worker_id or not self.is_registered:
            return  # another loop is already registering
        log.warning("the control plane does not know this worker any more; registering again")
        self._is_registered.clear()
        await self.run()

    def key_accepted(self) -> None:
        """Note that the control plane accepts the worker's key."""
        self._refused_since = None

    def key_refused(self, error: Unauthorized | Forbidden) -> None:
        """Note that the control plane refuses the worker's key; after a minute of it the worker ends.

        It is logged when it begins and when it ends. Nothing more is requested then.
        """
        now = asyncio.get_running_loop().time()
        if self._refused_since is None:
            self._refused_since = now
            message = "%s; this worker ends in %.0f s, unless its key file has another key by then"
            log.warning(message, error, _REFUSED_SECONDS)
        elif now - self._refused_since >= _REFUSED_SECONDS:
            log.error("this worker cannot stay: %s", with_key_remedy(error))
            self._is_registered.clear()
            self._on_refused()

    async def offer_more(self, announced: ModelAnnounced) -> None:
        """Offer another model beside those that the worker registered with. Raise `ModelConflict`."""
        offer = ModelOffer(spec=announced.spec, fit=announced.fit)
        await self._client.offer_more(await self.worker_id(), offer)
        others = [known for known in self.registration.models if known.spec.name != offer.spec.name]
        self._registration = replace(self.registration, models=(*others, offer))

    async def leave(self) -> None:
        """Deregister the worker, if it is registered, and do not register it again."""
        self._has_left = True
        if not self.is_registered:
            return
        try:
            async with asyncio.timeout(_LEAVE_SECONDS):
                await self._client.deregister(await self.worker_id())
        except (TimeoutError, DiffuserveError) as error:
            log.warning("the control plane was not told that this worker ends: %r", error)


def with_key_remedy(error: DiffuserveError) -> str:
    """Return the message of an error and, if another key would help, how to set one."""
    return f"{error}; {_KEY_REMEDY}" if isinstance(error, Unauthorized | Forbidden) else str(error)
