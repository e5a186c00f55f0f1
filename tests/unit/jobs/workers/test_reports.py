"""Workers' reports are stored so that control planes of earlier and later versions read them."""

import json
from dataclasses import replace

from diffuserve.domain.models.residency import RESIDENT
from diffuserve.domain.workers.peers import PeerAddress, PeerReport
from diffuserve.domain.workers.worker import LoadProgress, WorkerReport, WorkerState
from diffuserve.jobs.workers.reports import dated, dump_report, report_of

FULL = WorkerReport(
    state=WorkerState.INITIALIZING,
    resident_models=("tiny",),
    loading=LoadProgress(phase="weights"),
    quantization="none",
    residency=RESIDENT,
    withdrawn_models={"large": "does not fit"},
    peers=(PeerReport(model="0" * 64, address=PeerAddress("10.0.0.1", 7000)),),
)
PEER = FULL.peers[0]


def test_a_peer_is_dated_by_its_first_report() -> None:
    first = dated(FULL, None, now=5.0)
    assert first.peers == (replace(PEER, since=5.0),)
    forged = replace(FULL, peers=(replace(PEER, since=1.0),))
    assert dated(forged, first, now=9.0) == first
    whole = replace(FULL, peers=(replace(PEER, is_complete=True),))
    assert dated(whole, first, now=9.0).peers[0].since == 5.0
    assert dated(FULL, first, now=2.0).peers[0].since == 2.0, "the clock was set back"


def test_a_peer_at_another_place_and_one_that_fetches_again_are_dated_anew() -> None:
    first = dated(FULL, None, now=5.0)
    moved = replace(FULL, peers=(replace(PEER, address=PeerAddress("10.0.0.1", 7001)),))
    assert dated(moved, first, now=9.0).peers[0].since == 9.0
    whole = replace(first, peers=(replace(first.peers[0], is_complete=True),))
    assert dated(FULL, whole, now=9.0).peers[0].since == 9.0


def test_a_stored_report_is_read() -> None:
    assert report_of(dump_report(FULL)) == FULL
    least = WorkerReport(state=WorkerState.READY)
    assert report_of(dump_report(least)) == least


def test_what_a_later_version_adds_is_ignored() -> None:
    values = json.loads(dump_report(FULL))
    for part in (values, values["loading"], values["residency"], *values["peers"]):
        part["later"] = {"a": 1}
    values["peers"][0]["address"]["later"] = 1
    assert report_of(json.dumps(values)) == FULL


def test_what_an_earlier_worker_does_not_say_is_not_stored() -> None:
    """The earliest control planes that may stand beside this one know these fields alone."""
    stored = json.loads(dump_report(WorkerReport(state=WorkerState.READY)))
    known = "state timestamp num_gpus device_name num_cpus memory_bytes memory_limit_bytes resident_models"
    known += " last_step_seconds num_running mean_batch image_filter loading drain_reason"
    assert stored.keys() == set(known.split())
