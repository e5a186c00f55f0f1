"""Choices that torch reads from the environment when it starts. Importing this file loads no torch."""

import os

_SPINS = ("GOMP_SPINCOUNT", "10000")  # some ten microseconds: operations follow one another faster than that
_WAITS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
_SEGMENTS = ("PYTORCH_ALLOC_CONF", "expandable_segments:True")
_ALLOCATORS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


def prepare_torch() -> None:
    """Choose how torch's threads wait and how its CUDA memory grows, unless the operator has.

    It has an effect only before torch is imported.

    By default libgomp's threads, which wait for one another at the end of an operation, spin for a
    millisecond and more. Where another process uses the cores, that takes them from the very thread that is
    waited for: a first image took 10 s here instead of 0.3 s. On an idle machine nothing changes.

    By default memory of a CUDA device is taken in segments of fixed sizes, and batches of new sizes, as many
    steps have here, leave gaps in them. Segments that grow leave fewer.
    """
    _set_default(_SPINS, unless=_WAITS)
    _set_default(_SEGMENTS, unless=_ALLOCATORS)


def _set_default(default: tuple[str, str], unless: tuple[str, ...]) -> None:
    name, value = default
    if not any(knob in os.environ for knob in unless):  # noqa: TID251 (libraries have no other interface)
        os.environ[name] = value  # noqa: TID251
