"""Ranks in forked processes over Gloo."""

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from diffuserve.parallel.plan import ParallelPlan
from diffuserve.parallel.ranks import Ranks
from support.waiting import HANG_SECONDS

Program = Callable[[Ranks], Any]

SECRET = b"of this group"


def run_on_ranks(
    program: Program, num_ranks: int, store: Path, plan: ParallelPlan | None = None
) -> list[Any]:
    """Run a program on every rank, and return their results in the order of ranks.

    Without a `plan` they share every sequence. `store` is the path of a file that does not exist yet. The
    first error of a rank is raised.
    """
    fork = multiprocessing.get_context("fork")  # the program need not be importable, and torch is loaded
    results = [fork.Pipe(duplex=False) for _ in range(num_ranks)]
    processes = [
        fork.Process(target=_be_rank, args=(rank, num_ranks, store, plan, program, sender))
        for rank, (_, sender) in enumerate(results)
    ]
    for process in processes:
        process.start()
    try:
        assert all(receiver.poll(HANG_SECONDS) for receiver, _ in results)
        received = [receiver.recv() for receiver, _ in results]
    finally:
        for process in processes:
            process.kill()
            process.join()
    for result in received:
        if isinstance(result, BaseException):
            raise result
    return received


def _be_rank(
    rank: int, size: int, store: Path, plan: ParallelPlan | None, program: Program, sender: Any
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    try:
        sender.send(program(Ranks(plan or ParallelPlan(sequence=size), SECRET)))
        dist.barrier()  # none leaves while another still receives
    except BaseException as error:
        sender.send(error)
    finally:
        os._exit(0)
