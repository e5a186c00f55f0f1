"""The threads of torch's operations, set up before torch is imported. Importing this file loads no torch."""

import os

_SPINS = "10000"  # some ten microseconds: operations follow one another faster than that
_KNOBS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def spin_briefly() -> None:
    """Have a thread that waits for another one at the end of an operation sleep soon.

    By default libgomp's threads spin for a millisecond and more. Where another process uses the cores, that
    takes them from the very thread that is waited for: a first image took 10 s here instead of 0.3 s. On an
    idle machine nothing changes. A choice of the operator is kept. Only what is called before torch is
    imported has an effect: libgomp reads its environment once.
    """
    if not any(knob in os.environ for knob in _KNOBS):  # noqa: TID251 (libgomp has no other interface)
        os.environ[_KNOBS[0]] = _SPINS  # noqa: TID251
