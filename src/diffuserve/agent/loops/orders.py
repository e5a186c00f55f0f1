"""Carries out the orders of models that operators give to the worker."""

import asyncio
import logging
from contextlib import aclosing
from dataclasses import replace

from diffuserve.agent.config import WorkerConfig
from diffuserve.agent.engines.model_source import ModelSource
from diffuserve.agent.engines.served_model import ServedModel
from diffuserve.agent.engines.served_models import ServedModels
from diffuserve.agent.registration.membership import Membership
from diffuserve.agent.state.agent_state import AgentState
from diffuserve.domain.bounds import MAX_MESSAGE, as_printable
from diffuserve.domain.errors import DiffuserveError
from diffuserve.domain.workers.model_orders import ModelOrder, OrderProgress, OrdersReport, OrderState
from diffuserve.protocol.config import EngineProcessConfig
from diffuserve.protocol.messages import EngineRefused, ModelAnnounced

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5


class OrdersLoop:
    """Fetches and loads the ordered model, one at a time; what came of it is in `AgentState.orders`."""

    def __init__(
        self,
        config: WorkerConfig,
        membership: Membership,
        state: AgentState,
        models: ServedModels,
        source: ModelSource,
    ) -> None:
        self._config, self._membership, self._state = config, membership, state
        self._models, self._source = models, source

    async def run(self) -> None:
        """Take orders; of a worker that takes none it returns at once."""
        if not self._config.takes_orders:
            return
        await self._membership.worker_id()  # the engine's start goes first
        while True:
            await self._list()
            order = await self._next()
            work = asyncio.create_task(self._carry_out(order))
            try:
                await self._until_over_or_canceled(work, order)
            finally:
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)

    async def _list(self) -> None:
        """Report what can be had."""
        models = await self._source.models()
        earlier = self._state.orders or OrdersReport()
        self._report(replace(earlier, models=models))

    async def _next(self) -> ModelOrder:
        """Wait for an order that is not the last one again."""
        while (order := self._state.order) is None or order.id == self._last_id:
            self._state.order_changed.clear()
            await self._state.order_changed.wait()
        return order

    @property
    def _last_id(self) -> str | None:
        progress = None if self._state.orders is None else self._state.orders.progress
        return None if progress is None else progress.id

    async def _until_over_or_canceled(self, work: asyncio.Task[None], order: ModelOrder) -> None:
        while not work.done() and self._state.order == order:
            self._state.order_changed.clear()
            changed = asyncio.create_task(self._state.order_changed.wait())
            await asyncio.wait({work, changed}, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
        if not work.done():
            self._models.ordered = None
            self._tell(order, OrderState.CANCELED)

    async def _carry_out(self, order: ModelOrder) -> None:
        try:
            model = await self._offered(order)
            if isinstance(model, ServedModel):
                await self._load(order, model)
            else:
                self._tell(order, OrderState.FAILED, reason=model.reason)
        except DiffuserveError as error:
            self._tell(order, OrderState.FAILED, reason=str(error))
        except Exception:
            log.exception("the order of %s failed", order.model)
            self._tell(order, OrderState.FAILED, reason="the log of the worker says why")

    async def _offered(self, order: ModelOrder) -> ServedModel | EngineRefused:
        """Return the model once its files are here and it is offered, or why it cannot be."""
        config = _process_of(self._config, order.model)
        self._tell(order, OrderState.FETCHING)
        async with aclosing(self._source.obtain(config, self._models.budget)) as arrivals:
            async for told in arrivals:
                if isinstance(told, EngineRefused):
                    return told
                if isinstance(told, ModelAnnounced):
                    return await self._offer(config, told)
                done, total = told.bytes_read, told.bytes_total
                self._tell(order, OrderState.FETCHING, bytes_read=done, bytes_total=total)
        return EngineRefused(reason="its files did not arrive")

    async def _offer(self, config: EngineProcessConfig, announced: ModelAnnounced) -> ServedModel:
        """Offer the model beside the others, unless it is among them already."""
        model = self._models.of(announced.spec.name)
        if model is None:
            await self._membership.offer_more(announced)
            model = ServedModel(replace(config, model=announced.reference), announced)
            self._models.add(model)
        return model

    async def _load(self, order: ModelOrder, model: ServedModel) -> None:
        """Load the model, and wait until it is ready or cannot be loaded."""
        self._tell(order, OrderState.LOADING)
        self._models.ordered = model
        self._models.review()
        while not (model.is_ready or model.is_withdrawn):
            await asyncio.sleep(_LOOK_SECONDS)
        self._models.ordered = None
        state = OrderState.FAILED if model.is_withdrawn else OrderState.LOADED
        self._tell(order, state, reason=model.refusal)

    def _tell(
        self,
        order: ModelOrder,
        state: OrderState,
        reason: str = "",
        bytes_read: int = 0,
        bytes_total: int = 0,
    ) -> None:
        told = as_printable(reason, MAX_MESSAGE)
        if state.is_final:
            log.info("the order of %s: %s %s", order.model, state, told)
        progress = OrderProgress(
            id=order.id,
            model=order.model,
            state=state,
            bytes_read=bytes_read,
            bytes_total=bytes_total,
            reason=told,
        )
        self._report(replace(self._state.orders or OrdersReport(), progress=progress))

    def _report(self, report: OrdersReport) -> None:
        self._state.orders = report
        self._state.heartbeat_due.set()


def _process_of(config: WorkerConfig, model: str) -> EngineProcessConfig:
    """Return the process of an ordered model: that of the worker's own, without what is for that alone."""
    own = config.own_process
    engine = replace(own.engine, cost_fit_path=None)
    return replace(own, model=model, engine=engine, controlnets={}, image_prompter=None, adapter_files={})
