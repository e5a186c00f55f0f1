"""The address at which an engine process listens for its peers."""

import pytest

from diffuserve.domain.errors import InvalidParams
from diffuserve.engine_process.model.engine_peers import parse_address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("10.0.0.7", "10.0.0.7", 0),
        ("10.0.0.7:6881", "10.0.0.7", 6881),
        ("fd00::1", "fd00::1", 0),
        ("[fd00::1]:6881", "fd00::1", 6881),
    ],
)
def test_an_address_may_have_a_port(text: str, host: str, port: int) -> None:
    assert parse_address(text) == (host, port)


@pytest.mark.parametrize("text", ["10.0.0.7:x", "10.0.0.7:65536", "10.0.0.7:"])
def test_a_port_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidParams, match="ADDRESS:PORT"):
        parse_address(text)
