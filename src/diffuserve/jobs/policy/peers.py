"""The choice of a worker's peers and of its share of a model's pieces in the bucket: pure functions."""

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
_SETTLE_SECONDS = 0.5  # until reports sent before the end of the joining time are stored and readable


def advise(workers: Iterable[Worker], now: float, worker_id: str, model: str) -> PeerAdvice:
    """Return the peers and the share of a worker that reports this model; none for any other worker.

    A worker without a report may have one on its way, as may others. Workers that report soon after the first
    one split the reads, once it is certain which workers they are: reassigning pieces later would read those
    in transfer twice. Workers that report later, or while some worker has the whole model, read nothing. Lost
    workers do not count.
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
    """Return the next peers on a ring of all workers, so that every worker is a peer of equally many."""
    place = members.index(own)
    return tuple(report.address for _, report in (*members[place + 1 :], *members[:place]))[:_MAX_PEERS]


def _share(starting: list[tuple[float, str]], now: float, worker_id: str, has_whole: bool) -> Share:
    """Return a worker's share; there are none while others may join, or while a worker has all pieces."""
    ids = [starter for _, starter in starting]
    if worker_id not in ids:
        return UNADVISED.share
    index, joined_by = ids.index(worker_id), starting[0][0] + JOIN_SECONDS
    if has_whole or now < joined_by + _SETTLE_SECONDS:
        return Share(index + 1, 1, len(ids))
    num_readers = sum(since <= joined_by for since, _ in starting)
    return Share(index, num_readers, len(ids))
