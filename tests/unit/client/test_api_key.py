"""An API key in a file, replaced while requests are sent."""

from pathlib import Path

import httpx
import pytest

from diffuserve.client.api_key import KeyFile
from diffuserve.client.http import HttpTransport, RequestOptions
from diffuserve.domain.errors import InvalidParams, StorageRefused, Unauthorized

PROBLEM = {"code": "unauthorized", "detail": "invalid API key"}


class KeyServer(httpx.AsyncBaseTransport):
    """Accepts one key, and records those that it sees."""

    def __init__(self, valid: str) -> None:
        self.valid = valid
        self.seen: list[str | None] = []
        self.bodies: list[bytes] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request.headers.get("authorization"))
        self.bodies.append(await request.aread())
        is_valid = self.seen[-1] == f"Bearer {self.valid}"
        return httpx.Response(200, json={}) if is_valid else httpx.Response(401, json=PROBLEM)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text("dfs_old\n")
    return path


def transport(path: Path, server: KeyServer) -> HttpTransport:
    return HttpTransport("http://api.test", transport=server, auth=KeyFile(path), patience_seconds=0.0)


async def test_a_replaced_key_is_read_when_the_old_one_is_refused(path: Path) -> None:
    server = KeyServer("dfs_old")
    http = transport(path, server)
    await http.request("GET", "/v1/jobs")
    path.write_text("dfs_new")
    await http.request("GET", "/v1/jobs")
    assert server.seen == ["Bearer dfs_old"] * 2, "the old key is used as long as it is valid"
    server.valid = "dfs_new"
    await http.request("POST", "/v1/jobs", RequestOptions(content=b"body"))
    assert server.seen[2:] == ["Bearer dfs_old", "Bearer dfs_new"]
    assert server.bodies[2:] == [b"body"] * 2


async def test_requests_sent_at_the_same_time_all_get_the_new_key(path: Path) -> None:
    file = KeyFile(path)
    request = httpx.Request("GET", "http://api.test/")
    flows = [file.auth_flow(httpx.Request("GET", "http://api.test/")) for _ in range(2)]
    for flow in flows:
        assert next(flow).headers["authorization"] == "Bearer dfs_old"
    path.write_text("dfs_new")
    for flow in flows:
        again = flow.send(httpx.Response(401, request=request))
        assert again.headers["authorization"] == "Bearer dfs_new"


async def test_a_refusal_without_another_key_is_an_error(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = KeyServer("dfs_new")
    http = transport(path, server)
    with pytest.raises(Unauthorized):
        await http.request("GET", "/v1/jobs")
    path.unlink()
    for _ in range(2):
        with pytest.raises(Unauthorized):
            await http.request("GET", "/v1/jobs")
    assert len(server.seen) == 3
    assert caplog.text.count("there is no other") == 1


async def test_the_key_is_sent_to_no_other_server(path: Path) -> None:
    server = KeyServer("nothing")
    with pytest.raises(StorageRefused):
        await transport(path, server).put_external("https://bucket.test/a", b"x", {}, patience_seconds=0.0)
    assert server.seen == [None]


@pytest.mark.parametrize("content", ["", " \n", "two\nlines", "snow\N{SNOWMAN}"])
def test_a_file_without_one_key_is_refused(path: Path, content: str) -> None:
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InvalidParams, match="api_key_file"):
        KeyFile(path)
    path.unlink()
    with pytest.raises(InvalidParams, match="cannot be read"):
        KeyFile(path)
