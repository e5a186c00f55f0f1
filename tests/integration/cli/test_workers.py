"""`diffuserve workers` and `diffuserve jobs requeue` against a real server."""

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from diffuserve.domain.workers.worker import Registration, WorkerReport, WorkerState
from diffuserve.settings import Settings
from support.command import Invoke
from support.server_thread import ServerThread
from support.waiting import block_until


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[ServerThread]:
    """A server whose workers the test registers."""
    settings = Settings(data_dir=tmp_path / "fleet", port=0, prompt_filter="none")
    with ServerThread(settings, has_worker=False) as server:
        yield server


def register(server: ServerThread, name: str) -> str:
    report = WorkerReport(state=WorkerState.READY)
    registration = Registration(models=(), report=report, name=name, labels={"zone": "a"})
    return server.call(server.store.leases.register(registration))


def listed(invoke: Invoke, server: ServerThread) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        invoke("workers", "list", "--json", "--server", server.address).out
    )["data"]
    return found


def test_workers_are_listed_in_lines_that_are_not_wrapped(invoke: Invoke, fleet: ServerThread) -> None:
    empty = invoke("workers", "list", "--server", fleet.address)
    assert "no worker is registered" in empty.err
    ids = [register(fleet, "gpu-7"), register(fleet, "a name that is " + "long " * 40)]
    lines = invoke("workers", "list", "--server", fleet.address).out.splitlines()
    assert [line.split()[0] for line in lines] == ["id", *ids]
    assert lines[1].split()[1:3] == ["gpu-7", "ready"]
    assert lines[1].rstrip().endswith("zone=a")


def test_a_worker_is_drained_by_its_name_or_its_id(invoke: Invoke, fleet: ServerThread) -> None:
    first, second = register(fleet, "gpu-7"), register(fleet, "gpu-8")
    drained = invoke("workers", "drain", "gpu-7", "--server", fleet.address)
    assert (drained.code, drained.out) == (0, f"{first} drains, 0 jobs left")
    invoke("workers", "drain", second, "--server", fleet.address)
    assert [worker["is_draining"] for worker in listed(invoke, fleet)] == [True, True]
    table = invoke("workers", "list", "--server", fleet.address).out
    assert table.count("draining") == 2


def test_a_drain_can_be_waited_for(invoke: Invoke, fleet: ServerThread) -> None:
    worker_id = register(fleet, "gpu-7")

    def is_draining() -> bool:
        return fleet.call(fleet.store.operations.workers())[0].is_draining

    def end_once_drained() -> None:
        block_until(is_draining)
        fleet.call(fleet.store.leases.deregister(worker_id))

    Thread(target=end_once_drained, daemon=True).start()
    drained = invoke("workers", "drain", "gpu-7", "--wait", "--server", fleet.address)
    assert (drained.code, drained.out) == (0, f"{worker_id} ended")
    assert "gpu-7 drains: 0 jobs left" in drained.err
    assert listed(invoke, fleet) == []


def test_a_name_of_none_or_of_two_is_refused(invoke: Invoke, fleet: ServerThread) -> None:
    ids = {register(fleet, "gpu-7"), register(fleet, "gpu-7")}
    unknown = invoke("workers", "drain", "gpu-9", "--server", fleet.address)
    assert (unknown.code, "diffuserve workers list" in unknown.err) == (2, True)
    several = invoke("workers", "drain", "gpu-7", "--server", fleet.address)
    assert several.code == 2
    assert all(worker_id in several.err for worker_id in ids)
    assert not any(worker["is_draining"] for worker in listed(invoke, fleet))


def test_jobs_are_requeued_and_a_live_one_is_not(invoke: Invoke) -> None:
    ids = [json.loads(invoke("submit", "fail", "--wait", "--json").out)["id"] for _ in range(2)]
    requeued = invoke("jobs", "requeue", *ids)
    assert requeued.code == 0
    assert [line.split()[0] for line in requeued.out.splitlines()] == ids
    done = json.loads(invoke("submit", "a star", "--wait", "--json").out)["id"]
    refused = invoke("jobs", "requeue", done)
    assert refused.code == 1
    assert done in refused.err


def test_a_job_that_no_worker_can_run_says_so(invoke: Invoke, fleet: ServerThread) -> None:
    from diffuserve.domain.workers.worker import ModelOffer
    from support.hand_worker import HAND_SPEC

    offers = (ModelOffer(spec=HAND_SPEC),)
    report = WorkerReport(state=WorkerState.READY)
    worker_id = fleet.call(fleet.store.leases.register(Registration(models=offers, report=report)))
    fleet.call(fleet.store.leases.deregister(worker_id))
    submitted = invoke("submit", "a star", "--server", fleet.address)
    assert submitted.code == 0
    assert f"job {submitted.out}: no worker serves hand at present" in submitted.err
