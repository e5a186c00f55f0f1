"""The pool of adapters, with slow and broken files and too little room: no request is forgotten."""

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch

from diffuserve.domain.errors import InvalidAdapter, InvalidParams
from diffuserve.models.adapters.load_turns import MAX_OVERTAKEN
from diffuserve.models.adapters.pool import AdapterPool, Wanted
from diffuserve.models.adapters.sources import AdapterSource
from diffuserve.models.layers.adapted.adapters import Adapter, Delta, Uses
from diffuserve.models.layers.adapted.lora_pair import Components
from support.adapters import digest_of

VALUES = 16  # of each adapter
BYTES = 2 * VALUES


class Files:
    """Adapters that are read once they may be."""

    def __init__(self) -> None:
        self.reads, self.broken = list[str](), set[str]()
        self.blocked: dict[str, threading.Event] = {}

    def block(self, name: str) -> threading.Event:
        return self.blocked.setdefault(name, threading.Event())

    def source(self, name: str, num_values: int = VALUES) -> AdapterSource:
        def read() -> Components:
            self.reads.append(name)
            if name in self.blocked:
                assert self.blocked[name].wait(10)
            if name in self.broken:
                raise InvalidAdapter("a tensor is broken")
            return {}

        return AdapterSource(name, digest_of(name), num_values, read)

    def wanted(self, *names: str) -> Wanted:
        return [(self.source(name), 1.0) for name in names]


def place(name: str, _components: Components) -> Adapter:
    half = torch.zeros(VALUES // 2, 1, dtype=torch.float16)
    return Adapter(name, {"layer": [Delta(half, half.t())]})


class Requests:
    """Requests that hold adapters of a pool, and what they were told."""

    def __init__(self, pool: AdapterPool, files: Files) -> None:
        self.pool, self.files, self.told = pool, files, dict[str, Uses | Exception]()

    def ask(self, request_id: str, *names: str, tenant: str = "") -> None:
        uses = self.pool.hold(request_id, self.files.wanted(*names), tenant)
        if uses is None:
            self.pool.load(request_id, lambda outcome: self.told.update({request_id: outcome}))
        else:
            self.told[request_id] = uses

    def names(self, request_id: str) -> list[object]:
        outcome = self.told[request_id]
        assert not isinstance(outcome, Exception)
        return [adapter.key for adapter, _ in outcome]


@pytest.fixture
def files() -> Files:
    return Files()


@pytest.fixture
def requests(files: Files) -> Iterator[Requests]:
    pool = AdapterPool(place, max_bytes=3 * BYTES, value_bytes=2)
    yield Requests(pool, files)
    for event in files.blocked.values():
        event.set()
    pool.close()


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_tenant_with_many_slow_adapters_delays_no_other(requests: Requests, files: Files) -> None:
    files.block("slow1")
    for i, name in enumerate(("slow1", "slow2", "other")):
        requests.ask(f"many{i}", name, tenant="a")
    until(lambda: files.reads == ["slow1"])
    for i in (1, 2):
        requests.pool.release(f"many{i}")
    requests.ask("mine", "mine", tenant="b")
    until(lambda: "mine" in requests.told)
    assert files.reads == ["slow1", "mine"], "of two loaders one tenant has one"
    requests.ask("again", "mine", tenant="c")
    assert "again" in requests.told, "what is in memory waits for nothing"


def test_requests_share_a_load_and_its_failure_which_does_not_stay(requests: Requests, files: Files) -> None:
    gate = files.block("x")
    files.broken.add("x")
    requests.ask("one", "x", tenant="a")
    requests.ask("two", "x", tenant="b")
    gate.set()
    until(lambda: len(requests.told) == 2)
    assert all(str(outcome) == "adapter 'x': a tensor is broken" for outcome in requests.told.values())
    assert files.reads == ["x"]
    files.broken.clear()
    requests.ask("three", "x")
    until(lambda: "three" in requests.told)
    assert requests.names("three") == [digest_of("x")]


def test_requests_with_several_adapters_do_not_wait_for_each_other(requests: Requests, files: Files) -> None:
    requests.ask("one", "a", "b")
    requests.ask("two", "c", "d")
    until(lambda: "one" in requests.told)
    assert "two" not in requests.told, "there is room for three adapters, and none is held for half a request"
    requests.pool.release("one")
    until(lambda: "two" in requests.told)
    assert requests.pool.num_bytes <= 3 * BYTES


def test_a_large_request_is_overtaken_a_few_times_at_most(requests: Requests, files: Files) -> None:
    requests.ask("running", "a")
    until(lambda: "running" in requests.told)
    requests.ask("large", "b", "c", "d")
    for i in range(MAX_OVERTAKEN):
        requests.ask(f"small{i}", "a")
        assert f"small{i}" in requests.told
    requests.ask("late", "a")
    assert "late" not in requests.told
    for request_id in ("running", *(f"small{i}" for i in range(MAX_OVERTAKEN))):
        requests.pool.release(request_id)
    until(lambda: "large" in requests.told)
    requests.pool.release("large")
    until(lambda: "late" in requests.told)


def test_a_request_that_is_stopped_while_it_loads_leaves_room(requests: Requests, files: Files) -> None:
    gate = files.block("a")
    requests.ask("stopped", "a", "b", "c")
    until(lambda: files.reads == ["a"])
    requests.pool.release("stopped")
    requests.ask("next", "d", "e", "f")
    gate.set()
    until(lambda: "next" in requests.told)
    assert "stopped" not in requests.told
    assert requests.pool.num_bytes <= 3 * BYTES


def test_what_never_fits_is_refused_with_its_size(requests: Requests, files: Files) -> None:
    with pytest.raises(InvalidParams, match=r"adapters='a, b, c, d'.*128 bytes.*96.*--adapter-bytes"):
        requests.ask("too large", "a", "b", "c", "d")
    requests.ask("one", "a", "b", "c")
    until(lambda: "one" in requests.told)


def test_adapters_of_one_name_are_told_apart_by_content(requests: Requests, files: Files) -> None:
    old, new = files.source("style"), AdapterSource("style", digest_of("new"), VALUES, lambda: {})
    for request_id, source in (("old", old), ("new", new)):
        assert requests.pool.hold(request_id, [(source, 1.0)]) is None
        requests.pool.load(request_id, partial(requests.told.__setitem__, request_id))
    until(lambda: len(requests.told) == 2)
    assert requests.names("old") != requests.names("new")
    assert set(requests.pool.digests) == {digest_of("new"), digest_of("style")}


@pytest.mark.parametrize("seed", range(5))
def test_whatever_comes_and_goes_all_are_told(requests: Requests, files: Files, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    files.broken.add("5")
    running = list[str]()

    def pick(count: int) -> int:
        return int(torch.randint(count, (), generator=generator))

    for i in range(150):
        requests.ask(f"r{i}", *{str(pick(8)) for _ in range(1 + pick(3))}, tenant=str(pick(3)))
        running.append(f"r{i}")
        while len(running) > 6 or (running and pick(2)):
            requests.pool.release(running.pop(pick(len(running))))
    while running:
        until(lambda: bool(requests.told.keys() & set(running)))
        done = next(each for each in running if each in requests.told)
        requests.pool.release(done)
        running.remove(done)
    assert requests.pool.num_bytes <= 3 * BYTES
