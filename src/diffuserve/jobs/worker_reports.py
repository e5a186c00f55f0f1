"""Workers' reports as they are stored."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import orjson

from diffuserve.domain.peers import PeerAddress, PeerReport
from diffuserve.domain.residency import Residency
from diffuserve.domain.worker import LoadProgress, WorkerReport, WorkerState


@lru_cache(2_048)  # a report is read many times until the next one
def report_of(text: str) -> WorkerReport:
    """Return a worker's latest report."""
    values = orjson.loads(text)
    values["state"] = WorkerState(values["state"])
    values["resident_models"] = tuple(values["resident_models"])
    loading = values.get("loading")
    values["loading"] = None if loading is None else LoadProgress(**loading)
    residency = values.get("residency")
    values["residency"] = None if residency is None else Residency.from_dict(residency)
    values["peers"] = tuple(map(_peer_of, values.get("peers", ())))
    return WorkerReport(**values)


def _peer_of(values: Mapping[str, Any]) -> PeerReport:
    return PeerReport(**{**values, "address": PeerAddress(**values["address"])})
