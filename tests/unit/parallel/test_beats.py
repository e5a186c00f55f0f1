"""Who is silent, by the beats that were heard."""

from diffuserve.parallel.beats import Watch


def test_whoever_beats_is_not_silent() -> None:
    watch = Watch(2, now=0.0)
    for second in range(2, 40, 2):
        watch.hear([second, second], float(second))
        assert watch.silent(float(second)) == []


def test_a_rank_that_stops_is_silent_after_ten_seconds() -> None:
    watch = Watch(3, now=0.0)
    watch.hear([1, 1, 1], 2.0)
    watch.hear([2, 1, 2], 11.0)
    assert watch.silent(12.0) == []
    watch.hear([3, 1, 3], 12.5)
    assert watch.silent(12.5) == [1]


def test_a_rank_that_was_never_heard_is_silent_too() -> None:
    watch = Watch(2, now=0.0)
    watch.hear([1, 0], 11.0)
    assert watch.silent(11.0) == [1]
