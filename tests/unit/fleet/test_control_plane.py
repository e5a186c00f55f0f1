"""The address of a control plane in a file on a shared folder."""

from pathlib import Path

import pytest

from diffuserve.domain.errors import InvalidParams, ServerUnavailable
from diffuserve.fleet.control_plane import address_in


def test_the_address_is_read_anew_and_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "address"
    with pytest.raises(ServerUnavailable, match="is not there"):
        address_in(file)
    for host in ("n7", "n8"):
        file.write_text(f"http://{host}:8000\n", encoding="utf-8")
        assert address_in(file) == f"http://{host}:8000"


@pytest.mark.parametrize("content", [b"", b"n7:8000", b"http://n7:8000 --x", b"\xff"])
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
