"""The control plane of a fleet: where it is, and how many workers a model should have."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from diffuserve.domain.errors import InvalidParams, ModelNotFound, ServerUnavailable
from diffuserve.domain.resources.scale import ScaleResource
from diffuserve.private_files import check_own
from diffuserve.sdk.async_client import AsyncClient

_PATIENCE_SECONDS = 5.0
_LONGEST_SECONDS = 30.0
"""A response that comes byte by byte ends as well."""
_MAX_ADDRESS = 2_000


class PoolOfModel:
    """The workers that one model should have; with `is_spot`, beside those on demand."""

    def __init__(self, address: Callable[[], str], key: str | None, model: str, is_spot: bool) -> None:
        """`address` returns the control plane's URL, which may change; `key` has the role monitor."""
        self._address, self._key = address, key
        self._model, self._is_spot = model, is_spot

    async def size(self) -> ScaleResource | None:
        """Return the size; `None` for a model that no worker has offered yet, and that has no floor.

        Raise `ServerUnavailable`, `Unauthorized`, `Forbidden` or `ServerRefused`.
        """
        address = self._address()
        try:
            async with (
                asyncio.timeout(_LONGEST_SECONDS),
                AsyncClient(address, self._key, patience_seconds=_PATIENCE_SECONDS) as client,
            ):
                return await client.pool_size(self._model, is_spot=self._is_spot)
        except ModelNotFound:
            return None
        except TimeoutError as error:
            raise ServerUnavailable(f"{address} does not respond in {_LONGEST_SECONDS:g} s") from error


def address_in(file: Path) -> str:
    """Return the URL that a file on a shared folder holds.

    Raise `ServerUnavailable` while there is none, as between the file's truncation and its new content, and
    `InvalidParams` if others may have written it: workers send their key there.
    """
    try:
        check_own(file, "server_file")
        with file.open(encoding="utf-8") as opened:
            address = opened.read(_MAX_ADDRESS).strip()
    except FileNotFoundError as error:
        raise ServerUnavailable(f"{file} is not there; the control plane's job writes it") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParams("server_file", str(file), f"cannot be read: {error}") from error
    if not address:
        raise ServerUnavailable(f"{file} is empty; the control plane's job writes it")
    if not address.startswith(("http://", "https://")) or any(map(str.isspace, address)):
        raise InvalidParams("server_file", str(file), "holds no URL such as http://node7:8000")
    return address
