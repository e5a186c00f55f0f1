"""The pure choice of a worker's peers, and of the share of a model that it reads from the bucket."""

from collections.abc import Iterable

from diffuserve.domain.peers import JOIN_SECONDS, UNADVISED, PeerAddress, PeerAdvice, PeerReport, Share
from diffuserve.domain.worker import Worker, WorkerState

_MAX_PEERS = 50


def advise(workers: Iterable[Worker], worker_id: str, model: str) -> PeerAdvice:
    """Return the peers of a worker that reports this model, and its share; to another one nobody is named.

    That one has no share either: its report may be on its way, and others' too. Those that begin soon after
    the first share the reads; who comes later, or while somebody has the whole model, reads nothing. Lost
    workers do not count.
    """
    members = _members(workers, model)
    own = next((member for member in members if member[0].id == worker_id), None)
    if own is None:
        return UNADVISED
    starting = sorted(
        ((_began(*member), member[0].id) for member in members if not member[1].is_complete),
    )
    has_whole = len(starting) < len(members)
    return PeerAdvice(_neighbors(members, own), _share(starting, worker_id, has_whole))


def _members(workers: Iterable[Worker], model: str) -> list[tuple[Worker, PeerReport]]:
    return [
        (worker, report)
        for worker in workers
        if worker.state is not WorkerState.LOST
        for report in worker.report.peers
        if report.model == model
    ]


def _began(worker: Worker, report: PeerReport) -> float:
    """Return when a worker began, by the store's clock."""
    return worker.heartbeat_at - report.seconds


def _neighbors(
    members: list[tuple[Worker, PeerReport]], own: tuple[Worker, PeerReport]
) -> tuple[PeerAddress, ...]:
    """Return the peers that follow in the circle of all, so that every worker is a peer of as many."""
    place = members.index(own)
    return tuple(report.address for _, report in (*members[place + 1 :], *members[:place]))[:_MAX_PEERS]


def _share(starting: list[tuple[float, str]], worker_id: str, has_whole: bool) -> Share:
    """Return a worker's share; none has one while somebody has the whole model."""
    ids = [starter for _, starter in starting]
    if worker_id not in ids:
        return Share(1, 1, 1)
    index, first = ids.index(worker_id), starting[0][0]
    if has_whole:
        return Share(index + 1, 1, len(ids))
    num_readers = sum(began <= first + JOIN_SECONDS for began, _ in starting)
    return Share(index, num_readers, len(ids))
