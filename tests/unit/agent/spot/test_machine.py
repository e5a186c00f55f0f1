"""Every cloud is asked at once whether this machine may be taken away."""

import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack

import pytest

from diffuserve.agent.spot.aws import AwsNotices
from diffuserve.agent.spot.azure import AzureNotices
from diffuserve.agent.spot.base import NoticeSource, Spot
from diffuserve.agent.spot.gcp import GcpNotices
from diffuserve.agent.spot.machine import CLOUDS, Machine, find_machine
from support.metadata_servers import AwsMetadata, AzureMetadata, GcpMetadata, MetadataServer
from support.scripted_server import Reply, ScriptedServer, listening

CLASSES: Mapping[Spot, type[AwsNotices | GcpNotices | AzureNotices]] = {
    Spot.AWS: AwsNotices,
    Spot.GCP: GcpNotices,
    Spot.AZURE: AzureNotices,
}
ON_DEMAND: Mapping[Spot, MetadataServer] = {
    Spot.AWS: AwsMetadata(life_cycle="on-demand"),
    Spot.GCP: GcpMetadata(preemptible="FALSE"),
    Spot.AZURE: AzureMetadata(priority=""),
}
SPOT: Mapping[Spot, MetadataServer] = {
    Spot.AWS: AwsMetadata(),
    Spot.GCP: GcpMetadata(),
    Spot.AZURE: AzureMetadata(),
}


async def found_at(server: ScriptedServer, spot: Spot = Spot.AUTO) -> Machine:
    """Return the machine at whose link-local address this server is."""

    def opener(kind: type[AwsNotices | GcpNotices | AzureNotices]) -> Callable[[], NoticeSource]:
        return lambda: kind(server.url)

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(listening(server))
        machine = await find_machine(spot, {cloud: opener(kind) for cloud, kind in CLASSES.items()})
        if machine.notices is not None:
            await machine.notices.close()
    return machine


@pytest.mark.parametrize("cloud", CLASSES)
async def test_a_spot_machine_is_found_out(cloud: Spot, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    machine = await found_at(SPOT[cloud])
    assert machine.is_spot
    assert isinstance(machine.notices, CLASSES[cloud])
    assert f"this is a spot machine of {cloud}" in caplog.text


@pytest.mark.parametrize("cloud", CLASSES)
async def test_a_machine_on_demand_is_told_apart(cloud: Spot, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert await found_at(ON_DEMAND[cloud]) == Machine(is_spot=False)
    assert f"this is an on-demand machine of {cloud}" in caplog.text


@pytest.mark.parametrize(
    "always", [Reply(b"hello"), Reply({}, status=404), Reply({"name": "router"}, status=401), None]
)
async def test_a_machine_of_no_cloud_is_one_on_demand(
    always: Reply | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert await found_at(ScriptedServer(always=always)) == Machine()
    assert "no cloud's metadata service answers" in caplog.text


async def test_silence_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffuserve.agent.spot.metadata._TIMEOUT_SECONDS", 0.2)
    assert await found_at(ScriptedServer(always=Reply(b"", delay_seconds=600.0))) == Machine()


@pytest.mark.parametrize("cloud", CLASSES)
async def test_a_cloud_that_is_named_is_taken_at_its_word(cloud: Spot) -> None:
    server = ScriptedServer()
    machine = await found_at(server, cloud)
    assert machine.is_spot
    assert isinstance(machine.notices, CLASSES[cloud])
    assert server.requests == []


async def test_without_notices_nobody_is_asked() -> None:
    server = ScriptedServer()
    assert await found_at(server, Spot.OTHER) == Machine(is_spot=True)
    assert await found_at(server, Spot.NONE) == Machine(is_spot=False)
    assert server.requests == []


def test_every_cloud_has_its_source() -> None:
    assert {cloud: opened().cloud for cloud, opened in CLOUDS.items()} == {cloud: cloud for cloud in CLASSES}
