"""The ranks of a group, and what they exchange.

Inside a denoising step they exchange tokens for heads and parts for wholes. DeepSpeed-Ulysses (Jacobs et
al. 2023, arXiv:2309.14509): between attentions each rank holds some of the tokens with all of their
heads; for attention it holds all of the tokens with some of the heads.
"""

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.rendezvous import rendezvous

from diffuserve.parallel.beats import Beats, leave_broken_group
from diffuserve.parallel.plan import ParallelPlan, default_plan

_FOR_EVER = timedelta(days=365)  # an idle group waits for its next order; who is dead is found by beats


class OtherRankFailed(Exception):
    """This rank did well, and another did not: what they did together counts on neither."""


class GroupBroken(BaseException):
    """Ranks may wait for one another without end, so this process must go.

    Not an `Exception`: nobody may take it for one request's failure.
    """


def join_ranks(
    plan: ParallelPlan | None,
    device: torch.device,
    collective_seconds: float,
    *,
    has_passes: bool = False,
) -> "Ranks":
    """Meet the other ranks that torchrun has started.

    Without a plan the default one for a model whose guidance takes two passes (`has_passes`), or one.
    A collective of the device's group that takes longer than `collective_seconds` ends this process.
    """
    # A group that was left half-way may be met by its leftovers, who will never answer.
    overdue = threading.Timer(collective_seconds, leave_broken_group, [[]])
    overdue.daemon = True
    overdue.start()
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=collective_seconds))
    ranks = Ranks(plan or default_plan(dist.get_world_size(), has_passes), device)
    overdue.cancel()
    return ranks


def leave_ranks() -> NoReturn:
    """The end of this process, and a good one.

    The interpreter is not taken down: threads of gloo may still hold tensors of the last exchange, and one
    that lets go of them meanwhile aborts the process (https://github.com/pytorch/pytorch/pull/179291).
    """
    dist.destroy_process_group()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


def beats_of(ranks: "Ranks", on_silence: Callable[[list[int]], None] = leave_broken_group) -> Beats:
    """Over a connection of its own to torchrun's store: a call that waits holds a shared one up."""
    store, _, _ = next(rendezvous("env://"))
    return Beats(ranks.index, ranks.size, store, on_silence)


class SequenceRanks:
    """The ranks that share sequences. Each calls the same methods in the same order."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.index = dist.get_rank(group)
        self.size = dist.get_world_size(group)

    def scatter_heads(
        self, qkv: Float[Tensor, "local 3 heads dim"]
    ) -> Float[Tensor, "all 3 heads_of_one dim"]:
        """Some heads of every rank's tokens, in the order of ranks; every rank holds as many."""
        parts = qkv.unflatten(2, (self.size, -1)).permute(2, 0, 1, 3, 4)
        return self._exchange(parts).flatten(0, 1)

    def gather_heads(
        self, attended: Float[Tensor, "all heads_of_one dim"]
    ) -> Float[Tensor, "local heads dim"]:
        """The inverse: all heads of this rank's tokens."""
        parts = attended.unflatten(0, (self.size, -1))
        return self._exchange(parts).permute(1, 0, 2, 3).flatten(1, 2)

    def gather(self, part: Float[Tensor, "local channels"]) -> Float[Tensor, "all channels"]:
        """Every rank's part, in the order of ranks."""
        whole = part.new_empty(self.size * part.shape[0], *part.shape[1:])
        dist.all_gather(list(whole.chunk(self.size)), part.contiguous(), self._group)
        return whole

    def _exchange(self, parts: Tensor) -> Tensor:
        """Part `i` goes to rank `i`; gives what came, by the rank that it came from."""
        sent = parts.contiguous()
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self._group)
        return received


class GuidanceRanks:
    """The two ranks that share guidance: each runs one of its passes."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.index = dist.get_rank(group)
        self.size = dist.get_world_size(group)

    def run(self, passes: Sequence[Callable[[], Tensor]]) -> list[Tensor]:
        """What each pass predicts: one is run here, and the others by the others."""
        if self.size == 1:
            return [one() for one in passes]
        return self._gather(passes[self.index]())

    def _gather(self, prediction: Tensor) -> list[Tensor]:
        predictions = [torch.empty_like(prediction) for _ in range(self.size)]
        dist.all_gather(predictions, prediction.contiguous(), self._group)
        return predictions


class Ranks:
    """All ranks of a worker, after `init_process_group`.

    Two groups on the CPU stand beside the one of the device: orders and agreement go over the first,
    on the stepping thread; finished images over the second, on the decoder's.
    """

    def __init__(self, plan: ParallelPlan, device: torch.device) -> None:
        self.plan = plan
        self.index, self.size = dist.get_rank(), dist.get_world_size()
        mesh = init_device_mesh(device.type, (plan.cfg, plan.sequence), mesh_dim_names=("cfg", "sequence"))
        self.sequence = SequenceRanks(mesh.get_group("sequence"))
        self.guidance = GuidanceRanks(mesh.get_group("cfg"))
        self.orders = Channel(dist.new_group(backend="gloo", timeout=_FOR_EVER))
        self.images = Channel(dist.new_group(backend="gloo", timeout=_FOR_EVER))

    @property
    def is_lead(self) -> bool:
        """Whether this rank decides."""
        return self.index == 0

    @contextmanager
    def together(self) -> Iterator[None]:
        """Around what ranks exchange within a step.

        Entered once all are ready for it; raises `OtherRankFailed` where one was not. An error inside
        leaves the others waiting, so it is `GroupBroken`.
        """
        self.agree()
        try:
            yield
        except Exception as error:
            raise GroupBroken(f"rank {self.index} failed among the others: {error}") from error

    def agree(self, error: Exception | None = None) -> None:
        """Hear whether all ranks did well so far, and say what this one failed with.

        Raises `OtherRankFailed` on those that did well while others failed.
        """
        if self.orders.all(error is None):
            return
        said = None if error is None else f"rank {self.index}: {type(error).__name__}: {error}"
        failures = [one for one in self.orders.gather(said) if one is not None]
        if error is None:
            raise OtherRankFailed("; ".join(failures))


class Channel:
    """Small messages between ranks, over a group on the CPU. Used by one thread of each rank."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def broadcast(self, message: Any = None) -> Any:
        """What rank 0 says, on every rank."""
        carrier = [message]
        dist.broadcast_object_list(carrier, src=0, group=self._group, device=torch.device("cpu"))
        return carrier[0]

    def all(self, is_so: bool) -> bool:
        """Whether it is so on every rank."""
        flag = torch.tensor([int(is_so)], dtype=torch.int32)
        dist.all_reduce(flag, dist.ReduceOp.MIN, group=self._group)
        return bool(flag.item())

    def gather(self, message: Any) -> list[Any]:
        """What each rank says, on every rank."""
        said = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(said, message, self._group)
        return said

    def send(self, message: Any, rank: int) -> None:
        dist.send_object_list([message], rank, group=self._group, device=torch.device("cpu"))

    def receive(self, rank: int) -> Any:
        carrier = [None]
        dist.recv_object_list(carrier, rank, group=self._group, device=torch.device("cpu"))
        return carrier[0]
