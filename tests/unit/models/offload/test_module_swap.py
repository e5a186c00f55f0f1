"""Modules that share memory of the device have it one at a time, in the order in which they asked."""

import threading
import time
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from diffuserve.models.offload.copier import SyncCopier
from diffuserve.models.offload.module_swap import FairLock, ModuleSwap, one_by_one

CPU = torch.device("cpu")


class CountingCopier(SyncCopier):
    """Counts the copies."""

    def __init__(self) -> None:
        self.count = 0

    def begin(self, slot: Tensor, source: Tensor) -> None:
        self.count += 1
        super().begin(slot, source)


def in_turns(*modules: nn.Module) -> tuple[ModuleSwap, CountingCopier]:
    copier = CountingCopier()
    turns = ModuleSwap(modules, CPU, copier)
    for module in modules:
        one_by_one(module, ["forward"], partial(turns.of, module))
    return turns, copier


def test_threads_get_the_lock_in_the_order_in_which_they_ask() -> None:
    lock, order = FairLock(), list[int]()

    def work(number: int) -> None:
        with lock:
            order.append(number)

    with lock:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(5)]
        for number, thread in enumerate(threads):
            thread.start()
            while len(lock._waiting) < number + 2:
                time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert order == list(range(5))


def test_who_fails_leaves_the_lock_to_the_next() -> None:
    lock = FairLock()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), lock:
            raise ZeroDivisionError
    assert not lock._waiting


def test_modules_share_the_memory_of_the_largest_and_keep_their_numbers() -> None:
    large, small = nn.Linear(8, 8), nn.Conv2d(2, 2, 3)
    small.weight.data = small.weight.data.contiguous(memory_format=torch.channels_last)
    x, image = torch.randn(1, 8), torch.randn(1, 2, 4, 4)
    expected = large(x), small(image)
    turns, _ = in_turns(large, small)
    for _ in range(2):
        assert large(x).equal(expected[0])
        assert small(image).equal(expected[1])
    assert turns.device_bytes == turns.num_bytes(large) > turns.num_bytes(small)
    assert small.weight.is_contiguous(memory_format=torch.channels_last)


def test_a_module_whose_turn_comes_again_is_not_copied() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    _, copier = in_turns(first, second)
    for module in (first, first, second, first):
        module(torch.zeros(1, 4))
    assert copier.count == 3
