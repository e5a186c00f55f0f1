"""The worker that a command means by a name."""

import pytest

from diffuserve.cli.operate.server_view import without_replaced
from diffuserve.cli.operate.workers import named
from diffuserve.domain.errors import InvalidParams, WorkerNotFound
from diffuserve.domain.resources.worker import WorkerReportResource, WorkerResource
from diffuserve.domain.workers.worker import WorkerState


def worker(worker_id: str, state: WorkerState = WorkerState.READY, name: str = "w1") -> WorkerResource:
    return WorkerResource(
        id=worker_id,
        name=name,
        state=state,
        labels={},
        models=("m",),
        report=WorkerReportResource(state=WorkerState.READY),
        registered_at="2026-01-01T00:00:00Z",
        heartbeat_at="2026-01-01T00:00:00Z",
        is_draining=False,
        price_per_hour=None,
        is_spot=False,
        num_leases=0,
    )


def test_a_worker_that_was_started_again_goes_before_its_lost_self() -> None:
    ghosts = [worker("a", WorkerState.LOST), worker("b", WorkerState.LOST)]
    assert named("w1", [*ghosts, worker("c")]).id == "c"
    assert named("b", [*ghosts, worker("c")]).id == "b", "an id is an id"
    with pytest.raises(InvalidParams, match="2 workers have this name"):
        named("w1", ghosts)


def test_two_live_workers_of_a_name_are_told_apart_by_their_ids() -> None:
    with pytest.raises(InvalidParams, match="give an id: a, b"):
        named("w1", [worker("a"), worker("b")])
    with pytest.raises(WorkerNotFound):
        named("w2", [worker("a")])


def test_a_lost_worker_is_left_out_once_another_of_its_name_is_there() -> None:
    ghosts = [worker("a", WorkerState.LOST), worker("b", WorkerState.LOST)]
    others = [worker("d", WorkerState.LOST, "w2"), worker("e", name=""), worker("f", WorkerState.LOST, "")]
    assert without_replaced([*ghosts, worker("c"), *others]) == (worker("c"), *others)
    assert without_replaced(ghosts) == tuple(ghosts), "nobody replaced them"
