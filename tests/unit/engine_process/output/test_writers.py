"""Work of a job runs in order, that of different jobs side by side."""

import threading
from functools import partial

from diffuserve.engine_process.output.writers import OrderedWriters
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


def test_an_image_waits_for_no_clip_but_those_that_are_being_written() -> None:
    released, order = threading.Event(), list[str]()
    with OrderedWriters() as writers:
        for number in range(2):
            writers.submit(f"clip {number}", partial(_wait, released), is_clip=True)
        for number in range(2, 30):
            writers.submit(f"clip {number}", partial(order.append, "clip"), is_clip=True)
        writers.submit("image", partial(order.append, "image"))
        released.set()
    assert order.index("image") <= 1, "the other thread may have begun its next clip"


def test_a_flood_of_images_leaves_clips_every_second_turn() -> None:
    begun, released, order = threading.Barrier(3), threading.Event(), list[str]()

    def hold() -> None:
        begun.wait(HANG_SECONDS)
        _wait(released)

    with OrderedWriters() as writers:
        for number in range(2):
            writers.submit(f"held {number}", hold)
        begun.wait(HANG_SECONDS)
        for number in range(30):
            writers.submit(f"image {number}", partial(order.append, "image"))
            writers.submit("clip", partial(order.append, "clip"), is_clip=True)
        released.set()
    assert order[:20].count("clip") >= 5


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
