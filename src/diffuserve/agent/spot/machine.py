"""The machine that a worker runs on: whether it may be taken away, and the source of notices."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from diffuserve.agent.spot.aws import AwsNotices
from diffuserve.agent.spot.azure import AzureNotices
from diffuserve.agent.spot.base import NoticeSource, Spot
from diffuserve.agent.spot.gcp import GcpNotices
from diffuserve.domain.errors import ServerUnavailable

log = logging.getLogger(__name__)

CLOUDS: Mapping[Spot, Callable[[], NoticeSource]] = {
    Spot.AWS: AwsNotices,
    Spot.GCP: GcpNotices,
    Spot.AZURE: AzureNotices,
}


@dataclass(frozen=True)
class Machine:
    """A machine; of one that `is_spot`, `notices` announce its end, if there are any."""

    is_spot: bool = False
    notices: NoticeSource | None = None


ON_DEMAND = Machine()


async def find_machine(spot: Spot, clouds: Mapping[Spot, Callable[[], NoticeSource]] = CLOUDS) -> Machine:
    """Return the machine that `--spot` describes; only `auto` asks the metadata services for it."""
    if spot is Spot.AUTO:
        return await _detect([open_source() for open_source in clouds.values()])
    return Machine(spot is not Spot.NONE, clouds[spot]() if spot in clouds else None)


async def _detect(sources: list[NoticeSource]) -> Machine:
    """Ask all clouds' metadata services at once; each recognizes only its own service's answer."""
    answers = await asyncio.gather(*map(_ask, sources))
    found = {source: answer for source, answer in zip(sources, answers, strict=True) if answer is not None}
    spot = next((source for source, is_spot in found.items() if is_spot), None)
    for source in sources:
        if source is not spot:
            await source.close()
    log.info("%s", _description(found))
    return Machine(spot is not None, spot)


def _description(found: Mapping[NoticeSource, bool]) -> str:
    for source, is_spot in found.items():
        return f"this is {'a spot' if is_spot else 'an on-demand'} machine of {source.cloud}"
    return "no cloud's metadata service answers; this is taken for an on-demand machine"


async def _ask(source: NoticeSource) -> bool | None:
    """Return whether it is a spot machine of this cloud; `None` if it is none of its machines."""
    try:
        return await source.is_spot()
    except ServerUnavailable as error:
        log.debug("not a machine of %s: %s", source.cloud, error)
        return None
