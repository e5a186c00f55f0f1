"""Work of a job runs in order, that of different jobs side by side."""

import threading
from functools import partial

from diffuserve.worker.writers import OrderedWriters
from support.waiting import HANG_SECONDS


def test_work_of_one_key_runs_in_order() -> None:
    done: list[int] = []
    with OrderedWriters() as writers:
        for number in range(200):
            writers.submit("a", partial(done.append, number))
        writers.submit("a", partial(done.append, 200))
    assert done == list(range(201))


def test_work_of_different_keys_runs_side_by_side() -> None:
    both = threading.Barrier(2, timeout=HANG_SECONDS)
    with OrderedWriters() as writers:
        writers.submit("a", partial(_meet, both))
        writers.submit("b", partial(_meet, both))
    assert not both.broken


def test_work_that_waits_for_its_turn_keeps_no_thread_from_others() -> None:
    released, other = threading.Event(), threading.Event()
    with OrderedWriters() as writers:
        writers.submit("clip", partial(_wait, released))
        for _ in range(5):
            writers.submit("clip", lambda: None)
        writers.submit("image", other.set)
        assert other.wait(HANG_SECONDS)
        released.set()


def test_much_work_of_many_keys_ends_without_a_deadlock() -> None:
    done: list[tuple[str, int]] = []
    with OrderedWriters() as writers:
        for number in range(50):
            for key in "abcdefgh":
                writers.submit(key, partial(done.append, (key, number)))
    for key in "abcdefgh":
        assert [number for found, number in done if found == key] == list(range(50))


def test_keys_that_ended_are_forgotten() -> None:
    with OrderedWriters() as writers:
        for key in ("a", "b"):
            writers.submit(key, lambda: None)
    assert writers._queues == {}


def test_work_that_fails_holds_up_no_later_work() -> None:
    done = threading.Event()

    def fail() -> None:
        raise OSError

    with OrderedWriters() as writers:
        writers.submit("a", fail)
        writers.submit("a", done.set)
    assert done.is_set()


def _wait(event: threading.Event) -> None:
    assert event.wait(HANG_SECONDS)


def _meet(both: threading.Barrier) -> None:
    both.wait()
