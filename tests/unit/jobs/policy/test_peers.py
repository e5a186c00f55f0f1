"""Advice to workers that fetch a model: who their peers are, and who reads what from the bucket."""

import pytest

from diffuserve.domain.workers.peers import UNADVISED, PeerAddress, PeerAdvice, PeerReport, Share
from diffuserve.domain.workers.worker import Worker, WorkerReport, WorkerState
from diffuserve.jobs.policy.peers import advise

MODEL, OTHER = "a" * 64, "b" * 64


def worker(
    name: str,
    since: float = 0.0,
    is_complete: bool = False,
    model: str = MODEL,
    state: WorkerState = WorkerState.INITIALIZING,
) -> Worker:
    """Return a worker that the store has heard of as fetching a model since then."""
    address = PeerAddress("10.0.0.1", 6881 + ord(name) - ord("a"))
    peer = PeerReport(model=model, address=address, is_complete=is_complete, since=since)
    return Worker(
        id=name,
        name=name,
        state=state,
        labels={},
        models=("m",),
        report=WorkerReport(state=state, peers=(peer,)),
        registered_at=0.0,
        heartbeat_at=100.0,
    )


def shares(*workers: Worker, now: float = 100.0) -> list[Share]:
    return [advise(workers, now, each.id, MODEL).share for each in workers]


def test_workers_that_begin_together_share_the_reads_in_the_order_of_their_beginning() -> None:
    assert shares(worker("a", 3.5), worker("b", 3.0), worker("c", 4.0)) == [
        Share(1, 3, 3),
        Share(0, 3, 3),
        Share(2, 3, 3),
    ]


def test_nobody_reads_while_others_may_join() -> None:
    workers = [worker("a", 3.0), worker("b", 3.5)]
    early = shares(*workers, now=4.4)
    assert not any(share.has(piece, 0) for share in early for piece in range(10))
    assert shares(*workers, now=4.5) == [Share(0, 2, 2), Share(1, 2, 2)]


def test_pieces_are_not_dealt_anew_when_others_come() -> None:
    first, second = worker("a", 3.0), worker("b", 3.5)
    _, *shared = shares(worker("z", 30.0), first, second)
    assert [(share.index, share.num_readers) for share in shared] == [(0, 2), (1, 2)]


def test_who_begins_later_reads_nothing_unless_in_vain() -> None:
    first, late = shares(worker("a", 3.0), worker("b", 30.0))
    assert (first, late) == (Share(0, 1, 2), Share(1, 1, 2))
    assert first.has(7, 0)
    assert not late.has(7, 0)
    assert late.has(7, 2)


def test_while_somebody_has_the_whole_model_nobody_reads_the_bucket() -> None:
    holder, *fetching = shares(worker("a", is_complete=True), worker("b", 3.0), worker("c", 3.0))
    assert not any(share.has(piece, 0) for share in fetching for piece in range(10))
    assert holder == Share(1, 1, 1)


def test_a_lost_worker_has_no_share_and_is_nobodys_peer() -> None:
    lost = worker("a", 3.0, state=WorkerState.LOST)
    advice = advise([lost, worker("b", 3.0)], 100.0, "b", MODEL)
    assert advice == PeerAdvice((), Share(0, 1, 1))


def test_peers_are_named_to_those_alone_that_report_the_model() -> None:
    workers = [worker("a"), worker("b"), worker("c", model=OTHER)]
    assert advise(workers, 100.0, "a", MODEL).peers == (PeerAddress("10.0.0.1", 6882),)
    assert advise(workers, 100.0, "c", MODEL) == UNADVISED


def test_a_worker_whose_report_is_on_its_way_does_not_read_as_if_it_were_alone() -> None:
    advice = advise([worker("a")], 100.0, "b", MODEL)
    assert advice == UNADVISED
    assert not any(advice.share.has(piece, 0) for piece in range(10))


def test_of_many_workers_each_is_named_to_as_many_as_others() -> None:
    workers = [worker(chr(ord("a") + number)) for number in range(80)]
    named = [peer for each in workers for peer in advise(workers, 100.0, each.id, MODEL).peers]
    assert {named.count(peer) for peer in named} == {50}


@pytest.mark.parametrize(
    ("num_readers", "num_waits", "most"), [(1, 0, 4), (8, 0, 2), (40, 0, 1), (4, 0, 4), (4, 1, 1)]
)
def test_a_fleet_reads_a_bounded_number_of_pieces_at_once(
    num_readers: int, num_waits: int, most: int
) -> None:
    assert Share(0, num_readers, 40).reads_at_once(num_waits) == most
