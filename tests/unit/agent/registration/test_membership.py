"""A worker registers once its model is known, and again after it was forgotten."""

import asyncio

import pytest

from diffuserve.agent.config import WorkerConfig
from diffuserve.agent.registration.membership import Membership
from diffuserve.domain.errors import Forbidden, ModelConflict, ServerUnavailable
from diffuserve.domain.models.cost import CostFit
from diffuserve.domain.workers.worker import WorkerState
from support.virtual_time import in_virtual_time
from support.worker_fakes import HEARTBEAT_SECONDS, FakeControlPlane, announced

ANNOUNCED = announced("m", fit=CostFit((0.0, 0.0), (1.0, 0.0, 0.0, 0.0), (0.0, 0.0)))


class Registering:
    """A membership, its control plane, and how often it was refused."""

    def __init__(self, **values: object) -> None:
        self.plane = FakeControlPlane()
        self.num_refusals = 0
        config = WorkerConfig(server="http://plane", **values)  # type: ignore[arg-type]
        self.membership = Membership(config, self.plane.client, self._refuse, is_spot=True)

    def _refuse(self) -> None:
        self.num_refusals += 1


@in_virtual_time
async def test_a_worker_registers_only_once_its_model_is_known() -> None:
    registering = Registering(name="ada", labels={"zone": "a"}, price_per_hour=2.5)
    running = asyncio.create_task(registering.membership.run())
    await asyncio.sleep(60.0)
    assert registering.plane.registrations == []
    registering.membership.announce([ANNOUNCED])
    await running
    (registration,) = registering.plane.registrations
    (offer,) = registration.models
    assert (offer.spec, offer.fit) == (ANNOUNCED.spec, ANNOUNCED.fit)
    assert (registration.name, registration.labels) == ("ada", {"zone": "a"})
    assert (registration.price_per_hour, registration.is_spot) == (2.5, True)
    assert registration.report.state is WorkerState.INITIALIZING


@in_virtual_time
async def test_a_registered_worker_has_an_id_a_model_and_an_interval() -> None:
    registering = Registering()
    registering.membership.announce([ANNOUNCED])
    await registering.membership.run()
    assert await registering.membership.worker_id() == "w1"
    assert [offer.spec.name for offer in registering.membership.registration.models] == ["m"]
    assert registering.membership.heartbeat_seconds == HEARTBEAT_SECONDS


@in_virtual_time
async def test_the_model_of_the_first_engine_stays() -> None:
    registering = Registering()
    registering.membership.announce([ANNOUNCED])
    registering.membership.announce([announced("another")])
    assert [offer.spec.name for offer in registering.membership.registration.models] == ["m"]


@in_virtual_time
async def test_registration_is_repeated_while_the_control_plane_is_away() -> None:
    registering = Registering()
    registering.plane.registration_outcomes.extend([ServerUnavailable("away")] * 3)
    registering.membership.announce([ANNOUNCED])
    await registering.membership.run()
    assert len(registering.plane.registrations) == 4
    assert registering.num_refusals == 0


@in_virtual_time
async def test_registration_is_repeated_while_others_offer_the_model_in_another_form(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registering = Registering()
    registering.plane.registration_outcomes.extend([ModelConflict("drain them first")] * 2)
    registering.membership.announce([ANNOUNCED])
    await registering.membership.run()
    assert (len(registering.plane.registrations), registering.num_refusals) == (3, 0)
    assert "cannot register yet: drain them first" in caplog.text


@in_virtual_time
async def test_a_refused_worker_does_not_try_again(caplog: pytest.LogCaptureFixture) -> None:
    registering = Registering()
    registering.plane.registration_outcomes.append(Forbidden("not a worker's key"))
    registering.membership.announce([ANNOUNCED])
    await registering.membership.run()
    assert registering.num_refusals == 1
    assert not registering.membership.is_registered
    assert "this worker cannot join: not a worker's key" in caplog.text


@in_virtual_time
async def test_an_interval_that_could_lose_leases_is_refused() -> None:
    registering = Registering(heartbeat_seconds=29.0)
    registering.membership.announce([ANNOUNCED])
    await registering.membership.run()
    assert registering.num_refusals == 1


@in_virtual_time
async def test_a_forgotten_worker_gets_a_new_id() -> None:
    registering = Registering()
    registering.membership.announce([ANNOUNCED])
    await registering.membership.run()
    await registering.membership.renew("w1")
    assert await registering.membership.worker_id() == "w2"


@in_virtual_time
async def test_loops_that_learn_of_it_together_register_once() -> None:
    registering = Registering()
    registering.membership.announce([ANNOUNCED])
    await registering.membership.run()
    await asyncio.gather(*(registering.membership.renew("w1") for _ in range(3)))
    await registering.membership.renew("w1")
    assert len(registering.plane.registrations) == 2
