"""Workers' reports as they are stored, by control planes of other versions too."""

from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any

import orjson

from diffuserve.domain.known_fields import known_fields
from diffuserve.domain.peers import PeerAddress, PeerReport
from diffuserve.domain.residency import Residency
from diffuserve.domain.worker import LoadProgress, WorkerReport, WorkerState
from diffuserve.jobs.records import dump

# Control planes from before 24 November 2026 fail on fields that they do not know. These are left out
# where a worker does not say them, so that a report of an earlier worker can be read by earlier ones.
_LATER_FIELDS = ("quantization", "residency", "withdrawn_models", "peers")


def dump_report(report: WorkerReport) -> str:
    """Encode a report as JSON text."""
    values = {field.name: getattr(report, field.name) for field in fields(report)}
    return dump({name: value for name, value in values.items() if value or name not in _LATER_FIELDS})


@lru_cache(2_048)  # a report is read many times until the next one
def report_of(text: str) -> WorkerReport:
    """Return a worker's latest report."""
    values = known_fields(WorkerReport, orjson.loads(text))
    values["state"] = WorkerState(values["state"])
    values["resident_models"] = tuple(values["resident_models"])
    loading = values.get("loading")
    values["loading"] = None if loading is None else LoadProgress(**known_fields(LoadProgress, loading))
    residency = values.get("residency")
    values["residency"] = None if residency is None else Residency.from_dict(residency)
    values["peers"] = tuple(map(_peer_of, values.get("peers", ())))
    return WorkerReport(**values)


def _peer_of(values: Mapping[str, Any]) -> PeerReport:
    address = PeerAddress(**known_fields(PeerAddress, values["address"]))
    return PeerReport(**{**known_fields(PeerReport, values), "address": address})
