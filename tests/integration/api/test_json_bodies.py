"""Bodies of JSON are read for those alone who may send them, and refused at little cost."""

from collections.abc import AsyncIterator

import httpx
import pytest

from diffuserve.api.http.json_body import MAX_VALUES, UnreadableJson, parsed_json
from diffuserve.domain.tenant import Plan, Role
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.store import JobStore
from support.hand_worker import HandWorker

JSON = {"content-type": "application/json"}
ROUTES = ["/v1/jobs", "/generate", "/v1/images/generations", "/v1/workers", "/v1/leases/job_1/complete"]


@pytest.fixture
def store_config() -> StoreConfig:
    plan = Plan(name="once", requests_per_second=0.001)
    return StoreConfig(plans={"once": plan}, default_plan="once")


class Body(httpx.AsyncByteStream):
    """A body that says whether it was read."""

    is_read = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.is_read = True
        yield b"{}"


async def send(http: httpx.AsyncClient, route: str, headers: dict[str, str]) -> tuple[int, bool]:
    """Return the status, and whether the body was read."""
    body = Body()
    request = http.build_request("POST", route, headers=JSON | headers)
    request.stream = body
    return (await http.send(request)).status_code, body.is_read


@pytest.mark.parametrize("route", ROUTES)
async def test_a_body_is_not_read_from_a_stranger_or_without_the_role(
    http: httpx.AsyncClient, store: JobStore, route: str
) -> None:
    _, monitor = await store.keys.create(Role.MONITOR)
    assert await send(http, route, {}) == (401, False)
    assert await send(http, route, {"authorization": f"Bearer {monitor}"}) == (403, False)


async def test_a_body_is_not_read_above_the_rate_of_its_sender(
    http: httpx.AsyncClient, store: JobStore
) -> None:
    _, key = await store.keys.create(Role.TENANT, tenant_id="ada")
    headers = {"authorization": f"Bearer {key}"}
    assert [await send(http, "/v1/jobs", headers) for _ in range(2)] == [(422, True), (429, False)], (
        "and the first was counted once"
    )


@pytest.mark.parametrize("route", ["/v1/jobs", "/v1/images/edits", "/v1/session"])
async def test_a_body_of_too_many_values_is_not_parsed(
    http: httpx.AsyncClient, worker: HandWorker, route: str
) -> None:
    content = b'{"input":[' + b"{}," * MAX_VALUES + b"{}]}"
    response = await http.post(route, content=content, headers=JSON)
    assert response.is_client_error
    assert f"at most {MAX_VALUES:,} are read" in response.text


async def test_thousands_of_errors_are_told_as_one(http: httpx.AsyncClient) -> None:
    """Lists in a worker's body have no bound of their own."""
    response = await http.post("/v1/workers", json={"models": [1] * 5_000, "report": {"state": "ready"}})
    assert (response.status_code, response.json()["detail"]) == (422, "body: has 5,000 errors")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"{", "is not JSON: .* [(]line 1, column 2[)]"),
        (b'{"a":\n {"b" "c"}}', "is not JSON: .* [(]line 2, column 7[)]"),
        (b'{"a": "\xff"}', "is not UTF-8: invalid start byte at byte 7"),
        (b"[" * 10_000, "is nested too deeply"),
        (b"1" * 5_000, "has a number of thousands of digits"),
        (b"[" * (MAX_VALUES + 1), "has about 20,001 values; at most 20,000 are read"),
    ],
)
def test_what_is_not_json_is_told_where(body: bytes, told: str) -> None:
    with pytest.raises(UnreadableJson, match=told):
        parsed_json(body)


@pytest.mark.parametrize(
    "body", [b'{"a": 1}', b'\xef\xbb\xbf{"a": 1}', b'{"a": 0, "a": 1}'], ids=["plain", "marked", "twice"]
)
def test_json_is_parsed(body: bytes) -> None:
    assert parsed_json(body) == {"a": 1}


def test_a_long_text_is_one_value() -> None:
    """Such as an image, in base64 after a comma."""
    assert parsed_json(b'["data:,' + b"A" * 5_000_000 + b'"]') == ["data:," + "A" * 5_000_000]
