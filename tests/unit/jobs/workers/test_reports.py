"""Workers' reports are stored so that control planes of other versions read them."""

import json
from dataclasses import replace

from diffuserve.domain.models.residency import RESIDENT
from diffuserve.domain.workers.peers import PeerAddress, PeerReport
from diffuserve.domain.workers.worker import LoadProgress, WorkerReport, WorkerState
from diffuserve.jobs.records import dump
from diffuserve.jobs.workers.reports import dated, report_of

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
    assert report_of(dump(FULL)) == FULL
    least = WorkerReport(state=WorkerState.READY)
    assert report_of(dump(least)) == least


def test_what_a_later_version_adds_is_ignored() -> None:
    values = json.loads(dump(FULL))
    for part in (values, values["loading"], values["residency"], *values["peers"]):
        part["later"] = {"a": 1}
    values["peers"][0]["address"]["later"] = 1
    assert report_of(json.dumps(values)) == FULL
