"""Passes for parked runs: each moment the largest group of calls that fit together goes first."""

import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from enum import Enum, auto
from typing import Any

import torch

from diffuserve.models.families.any_pipeline.running.call import Call
from diffuserve.models.families.any_pipeline.running.merging import merge_key, num_rows, run_merged
from diffuserve.models.families.any_pipeline.running.run import Run
from diffuserve.models.layers.adapted.adapters import key_of
from diffuserve.models.machine.isolation import is_device_fault, isolate, without_frames

Goal = Callable[[Run], bool]
"""Whether a run has come as far as it is to go now."""


class Sharing(Enum):
    """Which calls share passes where they fit together: none, those of equal adapters, or all."""

    NONE = auto()
    EQUAL_ADAPTERS = auto()
    ALL = auto()


class Passes:
    """Leads runs on, pass by pass. Safe to call from several threads with different runs.

    `on_pass` is told each pass's component and its rows.
    """

    def __init__(
        self, sharing: Sharing, on_pass: Callable[[str, int], None] = lambda _name, _rows: None
    ) -> None:
        self._sharing, self._on_pass = sharing, on_pass
        self._coders: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)

    def lead(self, runs: Sequence[Run], has_arrived: Goal) -> dict[Run, Exception]:
        """Lead runs on until each has arrived or ended; return the exceptions of those that did neither.

        A run whose call failed stays parked at it, and a run that failed in its own lines has ended.
        """
        failures: dict[Run, Exception] = {}
        for run in runs:
            if not run.ended and run.call is None:
                run.resume()

        def is_under_way(run: Run) -> bool:
            return not (run.ended or run in failures or has_arrived(run))

        while under_way := [run for run in runs if is_under_way(run)]:
            group = self._largest_group(under_way)
            for run, outcome in zip(group, self._pass(group), strict=True):
                if isinstance(outcome, Exception):
                    failures[run] = outcome
                else:
                    run.resume(outcome)
        return failures | {run: _own_failure(run.error) for run in runs if run.error is not None}

    def _largest_group(self, runs: Sequence[Run]) -> list[Run]:
        groups: defaultdict[Hashable, list[Run]] = defaultdict(list)
        for run in runs:
            assert run.call is not None
            groups[self._key(run, run.call)].append(run)
        return max(groups.values(), key=len)

    def _key(self, run: Run, call: Call) -> Hashable:
        """Return a key: runs with equal keys share a pass."""
        match self._sharing:
            case Sharing.NONE:
                return id(run)
            case Sharing.EQUAL_ADAPTERS:
                return (merge_key(call), key_of(call.adapters))
            case Sharing.ALL:
                return merge_key(call)

    @torch.inference_mode()
    def _pass(self, group: Sequence[Run]) -> list[Any]:
        calls = [run.call for run in group if run.call is not None]
        self._on_pass(calls[0].component, sum(map(num_rows, calls)))
        if calls[0].method == "forward":
            return isolate(calls, run_merged)
        with self._coders[id(calls[0].module)]:  # coders of clips keep a cache from frame to frame
            return isolate(calls, run_merged)


def _own_failure(error: Exception) -> Exception:
    """Return what a run raised in its own lines. A fault of the device is no run's failure, and is raised."""
    if is_device_fault(error):
        raise error
    return without_frames(error)
