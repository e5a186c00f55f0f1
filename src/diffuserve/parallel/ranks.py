"""The ranks of a group, and their collectives.

Within a denoising step ranks that share sequences exchange tokens for heads, and parts for wholes. This is
DeepSpeed-Ulysses (Jacobs et al. 2023, arXiv:2309.14509): between attentions each rank holds some of the
tokens with all of their heads; for attention it holds all of the tokens with some of the heads. Ranks that
share weights add up their parts of products (Shoeybi et al. 2019, arXiv:1909.08053).

With both, ranks stand in rows of `tensor` neighbors, which have the same tokens; those of one column have the
same weights. With `cfg` there are several such groups, which run different passes (see `pass_ranks`). Of
`cfg=2,tensor=2,sequence=2`:

    tokens │ weights ½ ½     │ ½ ½
    ½      │ rank    0 1     │ 4 5
    ½      │ rank    2 3     │ 6 7
           │ some passes     │ the others

Legend of shapes: `local` tokens of this rank, `all` tokens, `some_heads` = heads / ranks.
"""

import hashlib
import hmac
import logging
import os
import secrets
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from diffuserve.parallel.heartbeats import RankHeartbeats, leave_broken_group
from diffuserve.parallel.messages import pack, unpack
from diffuserve.parallel.pass_ranks import PassRanks
from diffuserve.parallel.plan import ParallelPlan, check_group
from diffuserve.parallel.rank_place import own_place
from diffuserve.parallel.rank_store import RankStore, open_rank_store
from diffuserve.parallel.seal import MAC_BYTES, Seal

_LENGTH_BYTES = 8
_EVERYBODY = -1
_NONCE = "nonce"
# An idle group waits for its next command without limit; heartbeats find ranks that died.
_NO_TIMEOUT = timedelta(days=365)


class OtherRankFailed(Exception):
    """Another rank failed, so the common work counts on no rank, though this one succeeded."""


class GroupBroken(BaseException):
    """A collective failed, or the rank among collectives, so others may wait forever: the process must end.

    Not an `Exception`, so that no handler takes it for one request's failure.
    """


def join_ranks(plan: ParallelPlan | None, device: torch.device, collective_seconds: float) -> "Ranks":
    """Join the group of the processes that the launcher has started.

    Without a plan all ranks share every sequence. A collective of the device's groups that takes longer
    than `collective_seconds`, like joining itself, ends this process. Raise `InvalidParams` for a plan of
    another number of ranks.
    """
    # Processes left over from a broken group may be met here, and never respond.
    overdue = threading.Timer(collective_seconds, leave_broken_group, [[]])
    overdue.daemon = True
    overdue.start()
    place = own_place()
    assert place is not None, "a rank is started by diffuserve.engine_process.ranks.launcher"
    store = open_rank_store(place)
    backend = "nccl" if device.type == "cuda" else "gloo"
    timeout = timedelta(seconds=collective_seconds)
    dist.init_process_group(backend, timeout=timeout, store=store, rank=place.rank, world_size=place.size)
    secret = _secret_of_group(store, place.secret, place.rank)
    ranks = Ranks(plan or ParallelPlan(sequence=place.size), secret, timeout, store)
    overdue.cancel()
    return ranks


def _secret_of_group(store: RankStore, secret: bytes, rank: int) -> bytes:
    """Return a secret that no earlier group has had, whose messages would pass otherwise."""
    if rank == 0:
        store.set(_NONCE, secrets.token_bytes(MAC_BYTES))
    return hmac.digest(secret, store.get(_NONCE), hashlib.sha256)


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
    """Build heartbeats through the store in which the ranks have met."""
    assert ranks.store is not None
    return RankHeartbeats(ranks.index, ranks.size, ranks.store, on_silence)


class SequenceRanks:
    """The ranks that share sequences. All of them must call the same methods in the same order."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
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
        dist.all_gather(list(whole.chunk(self.size)), part.contiguous(), self.group)
        return whole

    def _exchange(self, parts: Tensor) -> Tensor:
        """Send part `i` to rank `i`, and return the received parts in the order of their senders."""
        sent = parts.contiguous()
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self.group)
        return received


class TensorRanks:
    """The ranks that share weights. All of them must call the same methods in the same order."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.index = dist.get_rank(group)
        self.size = dist.get_world_size(group)

    def add_up(self, part: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return the sum of all ranks' parts, the same bits on each; the memory of `part` holds it."""
        part = part.contiguous()
        dist.all_reduce(part, group=self.group)
        return part

    def gather(self, part: Float[Tensor, "*rows some"]) -> Float[Tensor, "*rows all"]:
        """Return the features of all ranks side by side, in the order of ranks."""
        parts = part.new_empty(self.size, *part.shape)
        dist.all_gather(list(parts), part.contiguous(), self.group)
        return parts.movedim(0, -2).flatten(-2)


class Ranks:
    """The ranks of a worker, after `init_process_group`.

    `sequence` are those that share sequences with this rank; `tensor`, if the plan shards the weights, those
    that share the denoiser's weights; `passes` those that run other passes in its place. `world` are all of
    them: the text encoder's weights are sharded over these.

    Three groups on the CPU stand beside those of the device: commands and agreements use the first, on the
    thread that steps; on the decoder's thread finished images use the second, and the rows between ranks that
    decode one image the third, `slabs`. The first two prove each message with the `secret` of the group, by
    which each two ranks of groups on the CPU have proven themselves before.
    """

    def __init__(
        self,
        plan: ParallelPlan,
        secret: bytes,
        timeout: timedelta | None = None,
        store: RankStore | None = None,
    ) -> None:
        """Raise `InvalidParams` if the plan is for another number of ranks."""
        assert dist.group.WORLD is not None
        self.plan, self.store = plan, store
        self.index, self.size = dist.get_rank(), dist.get_world_size()
        check_group(plan, self.size)
        self.world = TensorRanks(dist.group.WORLD)
        self.sequence, self.passes = SequenceRanks(dist.group.WORLD), PassRanks()
        self.tensor: TensorRanks | None = None
        numbers, size = range(self.size), plan.group_size
        if plan.is_sharded:
            rows = [numbers[first : first + plan.tensor] for first in numbers[:: plan.tensor]]
            self.tensor = TensorRanks(_own_group(rows, timeout))
        if plan.sequence < self.size:
            groups = [numbers[first : first + size] for first in numbers[::size]]
            columns = [group[first :: plan.tensor] for group in groups for first in range(plan.tensor)]
            self.sequence = SequenceRanks(_own_group(columns, timeout))
        if plan.cfg > 1:
            self.passes = PassRanks(_own_group([numbers[first::size] for first in range(size)], timeout))
        self.commands = Channel(dist.new_group(backend="gloo", timeout=_NO_TIMEOUT), secret, b"commands")
        self.images = Channel(dist.new_group(backend="gloo", timeout=_NO_TIMEOUT), secret, b"images")
        self.slabs = SequenceRanks(dist.new_group(backend="gloo", timeout=timeout))
        shared = [self.tensor.group if self.tensor else None, self.passes.group]
        of_device = [dist.group.WORLD, self.sequence.group, *[group for group in shared if group is not None]]
        for number, group in enumerate(
            (*of_device, self.commands.group, self.images.group, self.slabs.group)
        ):
            prove_neighbors(group, Seal(secret, b"neighbors", bytes([number])))

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


def prove_neighbors(group: dist.ProcessGroup, seal: Seal) -> None:
    """Authenticate each two ranks of a group on the CPU to one another, over their connection.

    Gloo accepts the first process that connects as the rank that it waits for. NCCL asks for a number that
    only the store knows. Raise `GroupBroken` if a stranger has taken a rank's place.
    """
    if dist.get_backend(group) != "gloo":
        return
    own, ranks = dist.get_rank(group), range(dist.get_world_size(group))
    proofs = _tensor_of(b"".join(seal.proof(b"", own, other) for other in ranks))
    received = torch.empty_like(proofs)
    with _collective():
        dist.all_to_all_single(received, proofs, group=group)
        for other, proof in zip(ranks, received.view(len(ranks), MAC_BYTES), strict=True):
            seal.open(_bytes_of(proof), other, own)


class Channel:
    """Small messages between ranks, over a group on the CPU. Used by one thread of each rank.

    Each message is proven with the secret, its ends and its number among theirs. Methods raise `GroupBroken`
    if another rank has gone, or a message is not proven: no request is to blame for that.
    """

    def __init__(self, group: dist.ProcessGroup, secret: bytes, name: bytes) -> None:
        self.group = group
        self._seal = Seal(secret, b"channel", name)
        self._rank, self._size = dist.get_rank(group), dist.get_world_size(group)
        self._num_messages: Counter[tuple[int, int]] = Counter()

    def broadcast(self, message: Any = None) -> Any:
        """Return rank 0's message on every rank; the argument counts on rank 0 only."""
        return self._broadcast(message, 0)

    def all_true(self, value: bool) -> bool:
        """Return whether `value` is true on every rank."""
        places = [self._place(rank, _EVERYBODY) for rank in range(self._size)]
        with _collective():
            own = _tensor_of(self._seal.close(bytes([value]), *places[self._rank]))
            sealed = own.new_empty(self._size, len(own))
            dist.all_gather(list(sealed), own, self.group)
            return all(
                self._seal.open(_bytes_of(each), *place)[0]
                for each, place in zip(sealed, places, strict=True)
            )

    def gather(self, message: Any) -> list[Any]:
        """Return the messages of all ranks, in the order of ranks, on every rank."""
        return [self._broadcast(message, rank) for rank in range(self._size)]

    def send(self, message: Any, rank: int) -> None:
        """Send `message` to `rank`, which must `receive` it."""
        place = self._place(self._rank, rank)
        with _collective():
            for part in self._sealed(message, place):
                dist.send(part, rank, self.group)

    def receive(self, rank: int) -> Any:
        """Wait for a message that `rank` sends, and return it."""
        place = self._place(rank, self._rank)

        def take(part: Tensor) -> None:
            dist.recv(part, rank, self.group)

        with _collective():
            return self._received(take, place)

    def _broadcast(self, message: Any, source: int) -> Any:
        place = self._place(source, _EVERYBODY)

        def exchange(part: Tensor) -> None:
            dist.broadcast(part, source, self.group)

        with _collective():
            if source != self._rank:
                return self._received(exchange, place)
            for part in self._sealed(message, place):
                exchange(part)
            return message

    def _place(self, source: int, target: int) -> tuple[int, int, int]:
        """Return what the next message between two ends is proven with."""
        self._num_messages[source, target] += 1
        return source, target, self._num_messages[source, target]

    def _sealed(self, message: Any, place: tuple[int, ...]) -> Iterator[Tensor]:
        """Yield a message in two parts: its length, and itself."""
        packed = pack(message)
        yield _tensor_of(self._seal.close(len(packed).to_bytes(_LENGTH_BYTES), *place, 0))
        yield _tensor_of(self._seal.close(packed, *place, 1))

    def _received(self, take: Callable[[Tensor], None], place: tuple[int, ...]) -> Any:
        length = self._opened(take, _LENGTH_BYTES, (*place, 0))
        return unpack(self._opened(take, int.from_bytes(length), (*place, 1)))

    def _opened(self, take: Callable[[Tensor], None], num_bytes: int, place: tuple[int, ...]) -> bytes:
        part = torch.empty(num_bytes + MAC_BYTES, dtype=torch.uint8)
        take(part)
        return self._seal.open(_bytes_of(part), *place)


def _tensor_of(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _bytes_of(content: Tensor) -> bytes:
    return content.numpy().tobytes()


@contextmanager
def _collective() -> Iterator[None]:
    """Enclose a call that all ranks make; its errors become `GroupBroken`."""
    try:
        yield
    except Exception as error:
        raise GroupBroken(f"a collective failed: {error}") from error
