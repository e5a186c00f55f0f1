"""structlog without rich, which it loads for tracebacks that are not used here.

That would be 0.16 of the 0.18 s of CPU that it takes, in every process.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _without(package: str) -> Iterator[None]:
    """Let imports in the block find no such package."""
    known = {name: module for name, module in sys.modules.items() if name == package}
    sys.modules[package] = None  # type: ignore[assignment]  # marks it as not importable
    try:
        yield
    finally:
        del sys.modules[package]
        sys.modules.update(known)


with _without("rich"):
    import structlog as structlog
