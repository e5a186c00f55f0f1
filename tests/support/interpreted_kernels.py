"""Triton's kernels on a CPU, run by its interpreter.

Whether Triton interprets is settled for a process when it is first imported, so they run in one of their own.
"""

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch import Tensor


@contextmanager
def interpreter() -> Iterator[ProcessPoolExecutor]:
    """Yield a process that runs `filled` and `prepared_in_place`."""
    spawn = multiprocessing.get_context("spawn")
    with (
        patch.dict("os.environ", {"TRITON_INTERPRET": "1"}),
        ProcessPoolExecutor(max_workers=1, mp_context=spawn) as process,
    ):
        yield process


def filled(name: str, operands: tuple[Any, ...], out: Tensor) -> Tensor:
    """Return what a kernel makes of `out`."""
    from diffuserve.models.layers import triton_kernels

    result: Tensor = getattr(triton_kernels, name)(*operands, out=out)
    return result


def prepared_in_place(qkv: Tensor, *operands: Any) -> Tensor:
    """Return q, k and v after the kernel has changed queries and keys where they stand."""
    filled("prepare_qkv", (qkv[:, :2], *operands), qkv[:, :2])
    return qkv
