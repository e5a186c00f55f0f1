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
        writers.finish("a", partial(done.append, 200))
    assert done == list(range(201))


def test_work_of_different_keys_runs_side_by_side() -> None:
    both = threading.Barrier(2, timeout=HANG_SECONDS)
    with OrderedWriters() as writers:
        writers.submit("a", partial(_meet, both))
        writers.finish("b", partial(_meet, both))
    assert not both.broken


def test_much_work_of_many_keys_ends_without_a_deadlock() -> None:
    done: list[tuple[str, int]] = []
    with OrderedWriters() as writers:
        for number in range(50):
            for key in "abcdefgh":
                (writers.finish if number == 49 else writers.submit)(key, partial(done.append, (key, number)))
    for key in "abcdefgh":
        assert [number for found, number in done if found == key] == list(range(50))


def test_keys_that_ended_are_forgotten() -> None:
    with OrderedWriters() as writers:
        for key in ("a", "b"):
            writers.submit(key, lambda: None)
        writers.finish("a", lambda: None)
        writers.forget("b")
        assert writers._last == {}


def _meet(both: threading.Barrier) -> None:
    both.wait()
