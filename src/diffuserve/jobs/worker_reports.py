"""Workers' reports as they are stored."""

from functools import lru_cache

import orjson

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
    return WorkerReport(**values)
