"""What a server needs of its machine: a folder, a port, a pipe."""

import os
import socket
from pathlib import Path

import pytest

from diffuserve.cli.data_folder import locked
from diffuserve.cli.http_server import address_of, is_loopback, listen
from diffuserve.cli.local_worker import arguments
from diffuserve.cli.worker import labels_of, read_key
from diffuserve.domain.errors import InvalidParams
from diffuserve.settings import Settings


def test_a_data_folder_serves_one_server_at_a_time(tmp_path: Path) -> None:
    with locked(tmp_path / "data"), pytest.raises(InvalidParams, match=f"process {os.getpid()}"):
        locked(tmp_path / "data").__enter__()
    with locked(tmp_path / "data"):
        pass


def test_a_port_that_is_taken_is_said_to_be() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidParams, match=rf"port={port}: .* already in use; --port 0"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize("host", ["nowhere.invalid", "192.0.2.1"])
def test_an_address_that_is_not_ours_is_refused(host: str) -> None:
    with pytest.raises(InvalidParams, match=host):
        listen(host, 0)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "example.com", "127.0.0.1.example.com", ""]
)
def test_what_others_may_reach_is_not_loopback(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1"])
def test_loopback_is_what_only_this_machine_reaches(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    ("host", "shown"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "[::1]"), ("::", "[::1]")],
)
def test_the_address_is_one_that_this_machine_reaches(host: str, shown: str) -> None:
    if ":" in host and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with listen(host, 0) as listener:
        assert address_of(listener) == f"http://{shown}:{listener.getsockname()[1]}"


def test_local_worker_gets_the_settings_of_its_server_and_no_secret() -> None:
    settings = Settings.with_options(
        data_dir=Path("/data"), model="m", drain_seconds=2, file_metadata=False, api_key="s3cret"
    )
    words = arguments("http://127.0.0.1:1", settings, "python -m engine")
    assert words[:6] == [
        *("--server", "http://127.0.0.1:1"),
        *("--name", f"serve:{socket.gethostname()}:/data"),
        *("--engine-command", "python -m engine"),
    ]
    assert {"--model", "m", "--drain-seconds", "2.0", "--no-metadata"} <= set(words)
    assert "--device" not in words, "what has no value is left to the worker's own default"
    assert "s3cret" not in words


@pytest.mark.parametrize(("written", "key"), [(b"s3cret\n", "s3cret"), (b"\n", None), (b"", None)])
def test_a_workers_key_comes_through_the_pipe(written: bytes, key: str | None) -> None:
    reader, writer = os.pipe()
    os.write(writer, written)
    if not written:
        os.close(writer)
    assert read_key(reader) == key


def test_labels_are_read() -> None:
    assert labels_of(["zone=a", "note=x=y", "empty="]) == {"zone": "a", "note": "x=y", "empty": ""}


@pytest.mark.parametrize("word", ["zone", "=a", ""])
def test_labels_that_are_none_are_refused(word: str) -> None:
    with pytest.raises(InvalidParams, match="KEY=VALUE"):
        labels_of([word])
