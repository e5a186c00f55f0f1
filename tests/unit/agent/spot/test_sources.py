"""Each cloud's notices, from a server on this machine that answers as its metadata service does."""

from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any

import pytest

from diffuserve.agent.spot import azure, metadata
from diffuserve.agent.spot.aws import AwsNotices
from diffuserve.agent.spot.azure import AzureNotices
from diffuserve.agent.spot.base import Notice, NoticeKind, NoticeSource
from diffuserve.agent.spot.gcp import GcpNotices
from diffuserve.domain.errors import ServerUnavailable
from support.metadata_servers import NOT_FOUND, OVERLOADED, AwsMetadata, AzureMetadata, GcpMetadata
from support.scripted_server import Reply, listening, too_slow

Cloud = AwsMetadata | GcpMetadata | AzureMetadata
PREEMPTED = "/computeMetadata/v1/instance/preempted"


@pytest.fixture(params=[(AwsMetadata, AwsNotices), (GcpMetadata, GcpNotices), (AzureMetadata, AzureNotices)])
async def both(request: pytest.FixtureRequest) -> AsyncGenerator[tuple[Cloud, NoticeSource]]:
    server_class, source_class = request.param
    async with listening(server_class()) as server:
        source = source_class(server.url)
        yield server, source
        await source.close()


@pytest.fixture
async def aws() -> AsyncGenerator[tuple[AwsMetadata, AwsNotices]]:
    async with listening(AwsMetadata()) as server:
        source = AwsNotices(server.url)
        yield server, source
        await source.close()


@pytest.fixture
async def gcp() -> AsyncGenerator[tuple[GcpMetadata, GcpNotices]]:
    async with listening(GcpMetadata()) as server:
        source = GcpNotices(server.url)
        yield server, source
        await source.close()


@pytest.fixture
async def azure_machine() -> AsyncGenerator[tuple[AzureMetadata, AzureNotices]]:
    async with listening(AzureMetadata()) as server:
        source = AzureNotices(server.url)
        yield server, source
        await source.close()


async def test_nothing_is_heard_until_the_cloud_announces_the_end(both: tuple[Cloud, NoticeSource]) -> None:
    server, source = both
    assert await source.is_spot()
    assert [await source.look(), await source.look()] == [None, None]
    server.interrupt()
    notice = await source.look()
    assert notice is not None
    assert notice.kind is NoticeKind.INTERRUPTION


async def test_a_machine_on_demand_says_so(both: tuple[Cloud, NoticeSource]) -> None:
    server, source = both
    on_demand = {"life_cycle": "on-demand", "preemptible": "FALSE", "priority": "Regular"}
    for name, value in on_demand.items():
        if hasattr(server, name):
            setattr(server, name, value)
    assert not await source.is_spot()


FAULTS: dict[str, Callable[[], Reply | None]] = {
    "overloaded": lambda: OVERLOADED,
    "throttled": lambda: replace(OVERLOADED, status=429),
    "refused": lambda: replace(OVERLOADED, status=403),
    "no response": lambda: None,
    "endless": lambda: Reply(b"", is_endless=True),
    "html": lambda: Reply(b"<html>welcome, please log in</html>"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_is_an_error_and_the_next_look_hears_again(
    both: tuple[Cloud, NoticeSource], fault: str
) -> None:
    server, source = both
    await source.look()
    server.interrupt()
    server.script.append(FAULTS[fault]())
    with pytest.raises(ServerUnavailable):
        await source.look()
    assert await source.look() is not None


@pytest.mark.parametrize("number", range(2))
async def test_a_service_that_answers_too_late_or_drop_by_drop_is_not_waited_for(
    both: tuple[Cloud, NoticeSource], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, source = both
    await source.look()
    for name in (
        "diffuserve.agent.spot.gcp._WAIT_SECONDS",
        "diffuserve.agent.spot.metadata._TIMEOUT_SECONDS",
    ):
        monkeypatch.setattr(name, 0.2)
    server.script.append(too_slow(Reply({}))[number])
    with pytest.raises(ServerUnavailable, match="does not respond"):
        await source.look()


async def test_the_address_is_the_one_that_all_clouds_document() -> None:
    assert metadata.LINK_LOCAL == "http://169.254.169.254"


async def test_no_redirect_and_no_proxy_leads_elsewhere(
    aws: tuple[AwsMetadata, AwsNotices], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, source = aws
    async with listening(AwsMetadata()) as other:
        monkeypatch.setenv("HTTP_PROXY", other.url)
        server.script.append(Reply(b"", status=302, headers={"location": f"{other.url}/latest/api/token"}))
        with pytest.raises(ServerUnavailable, match="no token"):
            await source.look()
        assert await source.look() is None
        assert other.requests == []


class TestAws:
    """IMDSv2 wants a token, which expires."""

    async def test_one_token_serves_all_looks(self, aws: tuple[AwsMetadata, AwsNotices]) -> None:
        server, source = aws
        await source.is_spot()
        await source.look()
        assert len(server.tokens) == 1
        [asked] = server.requests_to("/latest/api/token")
        assert (asked.method, asked.headers["x-aws-ec2-metadata-token-ttl-seconds"]) == ("PUT", "21600")

    async def test_an_expired_token_is_replaced(self, aws: tuple[AwsMetadata, AwsNotices]) -> None:
        server, source = aws
        await source.look()
        server.expire_tokens()
        server.interrupt()
        notice = await source.look()
        assert notice == Notice(kind=NoticeKind.INTERRUPTION, details="terminate at 2026-11-23T08:22:00Z")
        assert len(server.tokens) == 2

    async def test_a_service_that_refuses_every_token_is_not_asked_in_a_loop(
        self, aws: tuple[AwsMetadata, AwsNotices]
    ) -> None:
        server, source = aws
        await source.look()
        num_before = len(server.requests)
        refused = replace(NOT_FOUND, status=401)
        server.script.extend([refused, Reply(b"token", headers={}), refused])
        with pytest.raises(ServerUnavailable, match="401"):
            await source.look()
        assert len(server.requests) == num_before + 3

    async def test_a_rebalance_recommendation_is_a_hint_until_the_notice_comes(
        self, aws: tuple[AwsMetadata, AwsNotices]
    ) -> None:
        server, source = aws
        server.rebalance = {"noticeTime": "2026-11-23T08:10:00Z"}
        hint = await source.look()
        assert hint == Notice(kind=NoticeKind.REBALANCE, details="at 2026-11-23T08:10:00Z")
        server.interrupt()
        notice = await source.look()
        assert notice is not None
        assert notice.kind is NoticeKind.INTERRUPTION

    async def test_what_it_says_is_shortened_and_cleaned_for_the_log(
        self, aws: tuple[AwsMetadata, AwsNotices]
    ) -> None:
        server, source = aws
        server.action = {"action": "\x1b[31mstop" * 100, "time": "soon"}
        notice = await source.look()
        assert notice is not None
        assert notice.details.isprintable()
        assert len(notice.details) < 150


class TestGcp:
    """The server delays its response until the value changes."""

    async def test_a_look_waits_for_a_change_of_what_the_one_before_saw(
        self, gcp: tuple[GcpMetadata, GcpNotices]
    ) -> None:
        server, source = gcp
        await source.look()
        await source.look()
        wanted = "?wait_for_change=true&last_etag=etag-of-FALSE&timeout_sec=60"
        assert [request.path for request in server.requests] == [PREEMPTED, f"{PREEMPTED}{wanted}"]

    async def test_after_an_error_the_value_is_read_without_waiting(
        self, gcp: tuple[GcpMetadata, GcpNotices]
    ) -> None:
        server, source = gcp
        await source.look()
        server.script.append(OVERLOADED)
        with pytest.raises(ServerUnavailable):
            await source.look()
        await source.look()
        assert server.requests[-1].path == PREEMPTED

    async def test_a_delayed_response_is_waited_for(
        self, gcp: tuple[GcpMetadata, GcpNotices], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server, source = gcp
        await source.look()
        monkeypatch.setattr(metadata, "_TIMEOUT_SECONDS", 0.1)
        headers = {"metadata-flavor": "Google", "etag": "e"}
        server.script.append(Reply(b"TRUE", headers=headers, delay_seconds=0.5))
        assert await source.look() is not None

    async def test_another_server_at_the_address_is_not_believed(
        self, gcp: tuple[GcpMetadata, GcpNotices]
    ) -> None:
        server, source = gcp
        server.script.append(Reply(b"TRUE"))
        with pytest.raises(ServerUnavailable, match="not Google's"):
            await source.look()


class TestAzure:
    """Events name the machines that they are about."""

    @pytest.mark.parametrize(
        ("event", "is_heard"),
        [
            ({"names": ("painter_4",)}, False),
            ({"names": ("painter_4", "PAINTER_3")}, True),
            ({"names": (), "kind": "Reboot"}, False),
            ({"names": (), "kind": "Freeze"}, False),
        ],
    )
    async def test_only_the_end_of_this_machine_counts(
        self, azure_machine: tuple[AzureMetadata, AzureNotices], event: dict[str, Any], is_heard: bool
    ) -> None:
        server, source = azure_machine
        names = event.pop("names")
        server.interrupt(*names, **event)
        assert (await source.look() is not None) is is_heard

    @pytest.mark.parametrize("events", [None, "none", [7], [{"EventType": "Preempt", "Resources": None}]])
    async def test_a_document_of_another_form_holds_no_notice(
        self, azure_machine: tuple[AzureMetadata, AzureNotices], events: Any
    ) -> None:
        server, source = azure_machine
        server.events = events
        assert await source.look() is None

    async def test_the_event_is_acknowledged_by_its_id(
        self, azure_machine: tuple[AzureMetadata, AzureNotices]
    ) -> None:
        server, source = azure_machine
        server.interrupt("another")
        server.interrupt()
        notice = await source.look()
        assert notice is not None
        await source.acknowledge(notice)
        assert server.started == ["event-1"]

    async def test_a_refused_acknowledgement_is_an_error(
        self, azure_machine: tuple[AzureMetadata, AzureNotices]
    ) -> None:
        server, source = azure_machine
        server.script.append(replace(NOT_FOUND, status=400))
        with pytest.raises(ServerUnavailable, match="400"):
            await source.acknowledge(Notice(kind=NoticeKind.INTERRUPTION, event_id="event-0"))

    async def test_the_first_document_may_take_two_minutes(
        self, azure_machine: tuple[AzureMetadata, AzureNotices], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server, source = azure_machine
        assert azure._FIRST_SECONDS == 120.0
        await source.is_spot()
        monkeypatch.setattr(metadata, "_TIMEOUT_SECONDS", 0.2)
        empty = Reply({"Events": []}, delay_seconds=0.6)
        server.script.extend([Reply({"name": "painter_3"}), empty, empty])
        assert await source.look() is None
        with pytest.raises(ServerUnavailable, match="does not respond"):
            await source.look()
