"""Workers' reports as they are stored, by control planes of other versions too."""

from dataclasses import replace
from functools import lru_cache

from diffuserve.domain.codec import from_json
from diffuserve.domain.workers.peers import PeerReport
from diffuserve.domain.workers.worker import WorkerReport


def dated(report: WorkerReport, previous: WorkerReport | None, now: float) -> WorkerReport:
    """Return a report whose peers are `since` the first report of each, which may be this one.

    So the order in which workers began stays as it is, however late their later reports come.
    """
    known = {} if previous is None else {(peer.model, peer.address): peer for peer in previous.peers}

    def since(peer: PeerReport) -> float:
        earlier = known.get((peer.model, peer.address))
        has_lost_it = earlier is not None and earlier.is_complete and not peer.is_complete
        return now if earlier is None or has_lost_it else min(earlier.since, now)  # the clock may step back

    return replace(report, peers=tuple(replace(peer, since=since(peer)) for peer in report.peers))


@lru_cache(2_048)  # a report is read many times until the next one
def report_of(text: str) -> WorkerReport:
    """Return a worker's latest report."""
    return from_json(WorkerReport, text)
