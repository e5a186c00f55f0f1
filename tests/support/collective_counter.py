"""Counts what one of several ranks would exchange with the others: collectives, and the bytes that it sends.

    with fake_group(8), fake_cuda():
        ranks = TensorRanks(dist.new_group(range(4)))
        with CollectiveCounter() as counter:
            ranks.add_up(torch.empty(1024, 5120, device="cuda:0"))
    print(counter.by_operation)

Nothing is exchanged. Bytes are those of rings, in which each rank sends as much as it receives: for a sum
2·(n - 1)/n of its tensor, of which it sends the parts on and then the sums; for a whole n - 1 parts; in an
exchange of all with all (n - 1)/n of its tensor.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(frozen=True)
class Exchange:
    """Collectives, and the bytes that a rank sends in them."""

    calls: int = 0
    sent: int = 0

    def __add__(self, other: "Exchange") -> "Exchange":
        return Exchange(self.calls + other.calls, self.sent + other.sent)


@contextmanager
def fake_group(size: int) -> Iterator[None]:
    """Have this process be the first of `size` ranks, of which there are no others."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


class CollectiveCounter(TorchDispatchMode):
    """Counts the collectives that are called within its block, by operation."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._exchanges: defaultdict[str, Exchange] = defaultdict(Exchange)

    def __enter__(self) -> "CollectiveCounter":
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    @property
    def by_operation(self) -> Mapping[str, Exchange]:
        return dict(self._exchanges)

    @property
    def total(self) -> Exchange:
        return sum(self._exchanges.values(), Exchange())

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.namespace == "c10d":
            name = func._schema.name.rpartition("::")[2]
            self._exchanges[name] += Exchange(1, _SENT[name](*args))
        return func(*args, **(kwargs or {}))


def _sum(tensors: list[Tensor], group: torch.ScriptObject, *_: Any) -> int:
    size = _size(group)
    return sum(2 * (size - 1) * tensor.nbytes // size for tensor in tensors)


def _whole(_outputs: Any, tensors: list[Tensor], group: torch.ScriptObject, *_: Any) -> int:
    return sum((_size(group) - 1) * tensor.nbytes for tensor in tensors)


def _all_to_all(_output: Tensor, sent: Tensor, group: torch.ScriptObject, *_: Any) -> int:
    size = _size(group)
    return (size - 1) * sent.nbytes // size


_SENT: Mapping[str, Callable[..., int]] = {
    "allreduce_": _sum,
    "allgather_": _whole,
    "alltoall_base_": _all_to_all,
}


def _size(group: torch.ScriptObject) -> int:
    size: int = dist.ProcessGroup.unbox(group).size()
    return size
