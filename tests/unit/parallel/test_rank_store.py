"""The store in which ranks meet, as torch's stores behave, and closed to strangers."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import HashStore, PrefixStore

from diffuserve.parallel.rank_place import RankPlace, inherited
from diffuserve.parallel.rank_store import RankStore, StoreGone, open_rank_store
from diffuserve.parallel.seal import NotProven
from diffuserve.parallel.store_server import StoreServer
from support.waiting import HANG_SECONDS

SECRET = b"s" * 32
Join = Callable[..., RankStore]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener
        listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def join(listener: socket.socket) -> Iterator[Join]:
    """Joins over TCP, as the ranks of further machines do."""
    StoreServer(SECRET, (), listener).start()
    address = f"127.0.0.1:{listener.getsockname()[1]}"

    with ExitStack() as stack:

        def join(secret: bytes = SECRET) -> RankStore:
            store = open_rank_store(RankPlace(0, 2, 0, 2, address, secret))
            stack.callback(store.close)
            return store

        yield join


def inherit(server: socket.socket, theirs: socket.socket) -> RankStore:
    StoreServer(SECRET, [server]).start()
    place = RankPlace(0, 1, 0, 1, inherited(theirs), SECRET)
    theirs.detach()
    return open_rank_store(place)


def test_ranks_of_one_machine_inherit_their_connection() -> None:
    with closing(inherit(*socket.socketpair())) as store:
        store.set("a", b"\x00\xff")
        assert store.get("a") == b"\x00\xff"


def test_it_behaves_as_stores_of_torch_do(join: Join) -> None:
    store, reference = join(), HashStore()
    for each in (store, reference):
        each.set("a", "1")
        assert each.get("a") == b"1"
        assert each.add("count", 2) == 2
        assert each.add("count", 3) == 5
        assert each.get("count") == b"5"
        assert each.check(["a", "count"])
        assert not each.check(["a", "b"])
        assert each.compare_set("a", "0", "2") == b"1"
        assert each.compare_set("a", "1", "2") == b"2"
        assert each.compare_set("new", "", "first") == b"first"
        assert each.num_keys() == 3
        assert each.delete_key("new")
        assert not each.check(["new"])


def test_a_rank_waits_for_what_another_one_sets_and_keeps_nobody_from_asking(join: Join) -> None:
    store, other = join(), join()
    values: list[bytes] = []
    waiting = threading.Thread(target=lambda: values.append(store.get("late")))
    waiting.start()
    store.set("meanwhile", "1")
    other.set("late", "here")
    waiting.join(HANG_SECONDS)
    assert values == [b"here"]


def test_a_rank_does_not_wait_for_ever(join: Join) -> None:
    with pytest.raises(TimeoutError, match="did not set never"):
        join().wait(["never"], timedelta(seconds=0.01))


def test_torch_uses_it_through_prefixes(join: Join) -> None:
    outer = PrefixStore("group", join())
    outer.set("a", "1")
    assert outer.get("a") == b"1"
    assert outer.check(["a"])
    assert join().get("group/a") == b"1"


def test_who_has_another_secret_is_told_so_and_changes_nothing(join: Join) -> None:
    with pytest.raises(NotProven, match="give all machines of the worker the same --node-secret-file"):
        join(b"t" * 32)
    assert join().num_keys() == 0


def test_strangers_cannot_take_all_places(join: Join, listener: socket.socket) -> None:
    """More than may wait unproven at a time: those over it are closed, and the ranks come in afterwards."""
    strangers = [socket.create_connection(listener.getsockname()) for _ in range(80)]
    refused = 0
    for stranger in strangers:
        stranger.settimeout(HANG_SECONDS)
        refused += len(stranger.recv(32)) == 0
    assert refused >= 16
    for stranger in strangers:
        stranger.close()
    join().set("a", "1")


def test_a_store_whose_launcher_has_ended_says_so() -> None:
    server, theirs = socket.socketpair()
    with closing(inherit(server, theirs)) as store:
        server.shutdown(socket.SHUT_RDWR)
        with pytest.raises(StoreGone):
            store.set("a", "1")
