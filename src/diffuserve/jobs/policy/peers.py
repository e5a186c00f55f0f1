"""The pure choice of a worker's peers, and of the share of a model that it reads from the bucket."""

from collections.abc import Iterable

from diffuserve.domain.workers.peers import (
    JOIN_SECONDS,
    UNADVISED,
    PeerAddress,
    PeerAdvice,
    PeerReport,
    Share,
)
from diffuserve.domain.workers.worker import Worker, WorkerState

_MAX_PEERS = 50
_SETTLE_SECONDS = 0.5  # until what was reported within the time to join is stored, and can be read


def advise(workers: Iterable[Worker], now: float, worker_id: str, model: str) -> PeerAdvice:
    """Return the peers of a worker that reports this model, and its share; to another one nobody is named.

    That one has no share either: its report may be on its way, and others' too. Those that are heard of soon
    after the first share the reads, as soon as it is certain who they are: were pieces dealt anew, those on
    their way would be read twice. Who comes later, or while somebody has the whole model, reads nothing.
    Lost workers do not count.
    """
    members = _members(workers, model)
    own = next((member for member in members if member[0].id == worker_id), None)
    if own is None:
        return UNADVISED
    starting = sorted((report.since, worker.id) for worker, report in members if not report.is_complete)
    has_whole = len(starting) < len(members)
    return PeerAdvice(_neighbors(members, own), _share(starting, now, worker_id, has_whole))


def _members(workers: Iterable[Worker], model: str) -> list[tuple[Worker, PeerReport]]:
    return [
        (worker, report)
        for worker in workers
        if worker.state is not WorkerState.LOST
        for report in worker.report.peers
        if report.model == model
    ]


def _neighbors(
    members: list[tuple[Worker, PeerReport]], own: tuple[Worker, PeerReport]
) -> tuple[PeerAddress, ...]:
    """Return the peers that follow in the circle of all, so that every worker is a peer of as many."""
    place = members.index(own)
    return tuple(report.address for _, report in (*members[place + 1 :], *members[:place]))[:_MAX_PEERS]


def _share(starting: list[tuple[float, str]], now: float, worker_id: str, has_whole: bool) -> Share:
    """Return a worker's share; nobody has one while others may join, or while somebody has all pieces."""
    ids = [starter for _, starter in starting]
    if worker_id not in ids:
        return UNADVISED.share
    index, joined_by = ids.index(worker_id), starting[0][0] + JOIN_SECONDS
    if has_whole or now < joined_by + _SETTLE_SECONDS:
        return Share(index + 1, 1, len(ids))
    num_readers = sum(since <= joined_by for since, _ in starting)
    return Share(index, num_readers, len(ids))
