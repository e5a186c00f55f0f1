"""The ranks of a group, and their collectives.

Within a denoising step ranks that share sequences exchange tokens for heads, and parts for wholes. This is
DeepSpeed-Ulysses (Jacobs et al. 2023, arXiv:2309.14509): between attentions each rank holds some of the
tokens with all of their heads; for attention it holds all of the tokens with some of the heads. Ranks that
share weights add up their parts of products (Shoeybi et al. 2019, arXiv:1909.08053).

With both, ranks stand in rows of `tensor` neighbors, which have the same tokens; those of one column have the
same weights. Of `tensor=2,sequence=2`:

    tokens │ weights ½ ½
    ½      │ rank    0 1
    ½      │ rank    2 3

Legend of shapes: `local` tokens of this rank, `all` tokens, `some_heads` = heads / ranks.
"""

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from diffuserve.parallel.heartbeats import RankHeartbeats, leave_broken_group
from diffuserve.parallel.plan import ParallelPlan, check_group

# An idle group waits for its next command without limit; heartbeats find ranks that died.
_NO_TIMEOUT = timedelta(days=365)


class OtherRankFailed(Exception):
    """Another rank failed, so the common work counts on no rank, though this one succeeded."""


class GroupBroken(BaseException):
    """A collective failed, or the rank among collectives, so others may wait forever: the process must end.

    Not an `Exception`, so that no handler takes it for one request's failure.
    """


def join_ranks(plan: ParallelPlan | None, device: torch.device, collective_seconds: float) -> "Ranks":
    """Join the group of the processes that torchrun has started.

    Without a plan all ranks share every sequence. A collective of the device's groups that takes longer
    than `collective_seconds`, like joining itself, ends this process. Raise `InvalidParams` for a plan of
    another number of ranks.
    """
    # Processes left over from a broken group may be met here, and never respond.
    overdue = threading.Timer(collective_seconds, leave_broken_group, [[]])
    overdue.daemon = True
    overdue.start()
    backend = "nccl" if device.type == "cuda" else "gloo"
    timeout = timedelta(seconds=collective_seconds)
    dist.init_process_group(backend, timeout=timeout)
    ranks = Ranks(plan or ParallelPlan(sequence=dist.get_world_size()), timeout)
    overdue.cancel()
    return ranks


def leave_ranks() -> NoReturn:
    """End this process with exit code 0, without taking the interpreter down.

    Gloo's threads may still hold tensors of the last exchange, and a thread that frees one while the
    interpreter ends aborts the process (https://github.com/pytorch/pytorch/pull/179291).
    """
    dist.destroy_process_group()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


def rank_heartbeats(
    ranks: "Ranks", on_silence: Callable[[list[int]], None] = leave_broken_group
) -> RankHeartbeats:
    """Build heartbeats on a connection of their own to torchrun's store.

    A call that waits blocks the other calls of a shared connection.
    """
    store, _, _ = next(rendezvous("env://"))
    return RankHeartbeats(ranks.index, ranks.size, store, on_silence)


class SequenceRanks:
    """The ranks that share sequences. All of them must call the same methods in the same order."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.index = dist.get_rank(group)
        self.size = dist.get_world_size(group)

    def scatter_heads(self, qkv: Float[Tensor, "local 3 heads dim"]) -> Float[Tensor, "all 3 some_heads dim"]:
        """Return some heads of all ranks' tokens, in the order of ranks, which hold equally many tokens."""
        parts = qkv.unflatten(2, (self.size, -1)).permute(2, 0, 1, 3, 4)
        return self._exchange(parts).flatten(0, 1)

    def gather_heads(self, attended: Float[Tensor, "all some_heads dim"]) -> Float[Tensor, "local heads dim"]:
        """Return all heads of this rank's tokens: the inverse of `scatter_heads`."""
        parts = attended.unflatten(0, (self.size, -1))
        return self._exchange(parts).permute(1, 0, 2, 3).flatten(1, 2)

    def gather(self, part: Float[Tensor, "local channels"]) -> Float[Tensor, "all channels"]:
        """Return the parts of all ranks, in the order of ranks."""
        whole = part.new_empty(self.size * part.shape[0], *part.shape[1:])
        dist.all_gather(list(whole.chunk(self.size)), part.contiguous(), self._group)
        return whole

    def _exchange(self, parts: Tensor) -> Tensor:
        """Send part `i` to rank `i`, and return the received parts in the order of their senders."""
        sent = parts.contiguous()
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self._group)
        return received


class TensorRanks:
    """The ranks that share weights. All of them must call the same methods in the same order."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.index = dist.get_rank(group)
        self.size = dist.get_world_size(group)

    def add_up(self, part: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return the sum of all ranks' parts, the same bits on each; the memory of `part` holds it."""
        part = part.contiguous()
        dist.all_reduce(part, group=self._group)
        return part

    def gather(self, part: Float[Tensor, "*rows some"]) -> Float[Tensor, "*rows all"]:
        """Return the features of all ranks side by side, in the order of ranks."""
        parts = part.new_empty(self.size, *part.shape)
        dist.all_gather(list(parts), part.contiguous(), self._group)
        return parts.movedim(0, -2).flatten(-2)


class Ranks:
    """The ranks of a worker, after `init_process_group`.

    `sequence` are those that share sequences with this rank; `tensor`, if the plan cuts the weights, those
    that share the denoiser's weights, and `world` are all of them: the text encoder's are cut over these.

    Two groups on the CPU stand beside those of the device: commands and agreements use the first, on the
    thread that steps; finished images use the second, on the decoder's thread.
    """

    def __init__(self, plan: ParallelPlan, timeout: timedelta | None = None) -> None:
        """Raise `InvalidParams` if the plan is for another number of ranks."""
        assert dist.group.WORLD is not None
        self.plan = plan
        self.index, self.size = dist.get_rank(), dist.get_world_size()
        check_group(plan, self.size)
        self.world = TensorRanks(dist.group.WORLD)
        self.sequence = SequenceRanks(dist.group.WORLD)
        self.tensor: TensorRanks | None = None
        if plan.is_cut:
            numbers = range(self.size)
            rows = [numbers[first : first + plan.tensor] for first in numbers[:: plan.tensor]]
            self.tensor = TensorRanks(_own_group(rows, timeout))
            columns = [numbers[first :: plan.tensor] for first in range(plan.tensor)]
            self.sequence = SequenceRanks(_own_group(columns, timeout))
        self.commands = Channel(dist.new_group(backend="gloo", timeout=_NO_TIMEOUT))
        self.images = Channel(dist.new_group(backend="gloo", timeout=_NO_TIMEOUT))

    @property
    def is_lead(self) -> bool:
        """True on rank 0, which makes all decisions."""
        return self.index == 0

    @contextmanager
    def together(self) -> Iterator[None]:
        """Enclose the collectives of a step.

        All ranks agree to enter first; raise `OtherRankFailed` if one of them has failed. An error inside
        becomes `GroupBroken`, as the others wait in their collectives.
        """
        self.agree()
        try:
            yield
        except Exception as error:
            raise GroupBroken(f"rank {self.index} failed among collectives: {error}") from error

    def agree(self, error: Exception | None = None) -> None:
        """Exchange with all ranks whether they have succeeded so far; `error` is this rank's failure.

        Raise `OtherRankFailed` on ranks that succeeded while others failed.
        """
        if self.commands.all_true(error is None):
            return
        failure = None if error is None else f"rank {self.index}: {type(error).__name__}: {error}"
        failures = [failed for failed in self.commands.gather(failure) if failed is not None]
        if error is None:
            raise OtherRankFailed("; ".join(failures))


def _own_group(groups: Iterable[Sequence[int]], timeout: timedelta | None) -> dist.ProcessGroup:
    """Return the group that this rank is in; every rank makes all of them, in this order."""
    own: dist.ProcessGroup | None
    own, _ = dist.new_subgroups_by_enumeration([list(ranks) for ranks in groups], timeout=timeout)
    assert own is not None
    return own


class Channel:
    """Small messages between ranks, over a group on the CPU. Used by one thread of each rank.

    Methods raise `GroupBroken` if another rank has gone: no request is to blame for that.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def broadcast(self, message: Any = None) -> Any:
        """Return rank 0's message on every rank; the argument counts on rank 0 only."""
        carrier = [message]
        with _collective():
            dist.broadcast_object_list(carrier, src=0, group=self._group, device=torch.device("cpu"))
        return carrier[0]

    def all_true(self, value: bool) -> bool:
        """Return whether `value` is true on every rank."""
        flag = torch.tensor([int(value)], dtype=torch.int32)
        with _collective():
            dist.all_reduce(flag, dist.ReduceOp.MIN, group=self._group)
        return bool(flag.item())

    def gather(self, message: Any) -> list[Any]:
        """Return the messages of all ranks, in the order of ranks, on every rank."""
        messages = [None] * dist.get_world_size(self._group)
        with _collective():
            dist.all_gather_object(messages, message, self._group)
        return messages

    def send(self, message: Any, rank: int) -> None:
        """Send `message` to `rank`, which must `receive` it."""
        with _collective():
            dist.send_object_list([message], rank, group=self._group, device=torch.device("cpu"))

    def receive(self, rank: int) -> Any:
        """Wait for a message that `rank` sends, and return it."""
        carrier = [None]
        with _collective():
            dist.recv_object_list(carrier, rank, group=self._group, device=torch.device("cpu"))
        return carrier[0]


@contextmanager
def _collective() -> Iterator[None]:
    """Enclose a call that all ranks make; its errors become `GroupBroken`."""
    try:
        yield
    except Exception as error:
        raise GroupBroken(f"a collective failed: {error}") from error
