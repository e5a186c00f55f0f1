"""Loops that restart after a failure."""

import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from diffuserve.backoff import Backoff, RestartPolicy, supervise
from diffuserve.domain.errors import DiffuserveError, Forbidden, ServerUnavailable, Unauthorized

log = logging.getLogger(__name__)

Loop: TypeAlias = Callable[[], Awaitable[None]]

_RESTARTS = RestartPolicy(Backoff(first_seconds=0.5, longest_seconds=5.0), healthy_seconds=5.0)


async def run_forever(loop: Loop) -> None:
    """Await `loop` again after every failure, until it returns; log each failure."""

    async def has_returned() -> bool:
        try:
            await loop()
        except ServerUnavailable as error:
            log.debug("%s", error)  # logged once as an outage, not every few seconds
        except (Unauthorized, Forbidden) as error:
            log.debug("%s", error)  # the heartbeats' refusal is logged, and ends the worker
        except DiffuserveError as error:
            log.warning("%s", error)
        except Exception:
            log.exception("a loop of the worker failed; it goes on")
        else:
            return True
        return False

    await supervise(has_returned, _RESTARTS, is_final=bool)
