"""The control plane of a fleet: its address in a file on a shared folder, and its responses, good or not."""

from pathlib import Path

import pytest

from diffuserve.client import http
from diffuserve.domain.errors import DiffuserveError, InvalidParams, ServerRefused, ServerUnavailable
from diffuserve.fleet import control_plane
from diffuserve.fleet.control_plane import PoolOfModel, address_in
from support.scripted_server import Reply, ScriptedServer, scripted, too_slow

SIZE = Reply(
    {
        "pool": "m",
        "workers": 3,
        "for_work": 3,
        "for_rate": 0,
        "floor": 0,
        "predicted": 0,
        "num_live": 1,
        "num_on_demand": 0,
    }
)
PAGE = Reply(b"<html>Sign in</html>", headers={"content-type": "text/html"})


def pool_at(server: ScriptedServer) -> PoolOfModel:
    return PoolOfModel(lambda: server.url, "a key", "m", is_spot=False)


async def test_the_size_is_what_the_control_plane_says() -> None:
    async with scripted() as server:
        server.always = SIZE
        size = await pool_at(server).size()
    assert size is not None
    assert (size.workers, size.num_live) == (3, 1)


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        (PAGE, ServerRefused, "no ScaleResource"),
        (Reply({"workers": "many"}), ServerRefused, "no ScaleResource"),
        (Reply([1] * 1_000), ServerRefused, "no ScaleResource"),
        (Reply(is_endless=True), ServerRefused, "more than 1 MiB"),
        (Reply(is_cut=True, content=SIZE.body), ServerUnavailable, "does not respond"),
        (None, ServerUnavailable, "does not respond"),
        *((reply, ServerUnavailable, "does not respond in 0.5 s") for reply in too_slow(SIZE)),
    ],
)
async def test_nonsense_and_endless_responses_are_refused_in_bounded_time(
    reply: Reply | None, error: type[DiffuserveError], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_MAX_CONTENT_BYTES", 1 << 20)
    monkeypatch.setattr(control_plane, "_PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(control_plane, "_LONGEST_SECONDS", 0.5 if "0.5" in message else 60.0)
    async with scripted() as server:
        server.always = reply
        with pytest.raises(error, match=message):
            await pool_at(server).size()


def test_the_address_is_read_anew_and_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "address"
    with pytest.raises(ServerUnavailable, match="is not there"):
        address_in(file)
    file.touch()
    with pytest.raises(ServerUnavailable, match="is empty"):
        address_in(file)
    for host in ("n7", "n8"):
        file.write_text(f"http://{host}:8000\n", encoding="utf-8")
        assert address_in(file) == f"http://{host}:8000"


@pytest.mark.parametrize("content", [b"n7:8000", b"http://n7:8000 --x", b"\xff"])
def test_what_is_no_url_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "address"
    file.write_bytes(content)
    with pytest.raises(InvalidParams, match="server_file"):
        address_in(file)


def test_a_file_that_everybody_may_write_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "address"
    file.write_text("http://n7:8000", encoding="utf-8")
    file.chmod(0o666)
    with pytest.raises(InvalidParams, match="everybody"):
        address_in(file)
