"""The state of Python's logging, which every test of a process shares."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def restored_logging() -> Iterator[None]:
    """Restore levels and handlers after the block, but for the handlers that pytest manages itself."""
    loggers = [logging.root, *map(logging.getLogger, ("diffuserve", "uvicorn", "alembic"))]
    levels = [logger.level for logger in loggers]
    handlers = list(logging.root.handlers)
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    for handler in logging.root.handlers[:]:
        if handler not in handlers:
            logging.root.removeHandler(handler)
