"""Logging of servers and workers."""

import logging

# They would log URLs and headers, which hold keys and signatures.
_CHATTY = ("httpx", "httpcore", "uvicorn", "websockets", "alembic")


def log_to_stderr() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    quiet_libraries()


def quiet_libraries() -> None:
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
