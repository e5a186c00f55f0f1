"""A server with limits, for the tests of its protocols."""

import pytest

from support import guarded_server
from support.guarded_server import Serve


@pytest.fixture
def serve() -> Serve:
    """Run a guarded server with some limits; the others are far away."""
    return guarded_server.serve
