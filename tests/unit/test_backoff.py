"""Retries and restarts, on a clock that jumps over the pauses."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest
import stamina

from diffuserve.backoff import Backoff, RestartPolicy, retry, supervise
from support.virtual_time import run_in_virtual_time

BACKOFF = Backoff(first_seconds=1.0, longest_seconds=8.0)


@dataclass
class Flaky:
    """Raises each error in turn, then returns the number of its attempts; notes when it was called."""

    errors: Iterator[Exception]
    called_at: list[float] = field(default_factory=list)

    async def __call__(self, attempt: int) -> int:
        self.called_at.append(asyncio.get_running_loop().time())
        for error in self.errors:
            raise error
        return attempt


def at_once(_error: Exception) -> float | None:
    return 0.0


def failing(num_times: int, error: Exception | None = None) -> Flaky:
    return Flaky(iter([error or OSError("away")] * num_times))


def test_a_pause_doubles_up_to_the_longest() -> None:
    assert [BACKOFF.pause_seconds(number) for number in (1, 2, 3, 4, 5, 5_000)] == [1, 2, 4, 8, 8, 8]


def test_jitter_only_shortens_a_pause() -> None:
    backoff = Backoff(1.0, 8.0, jitter=0.5)
    assert all(4.0 <= backoff.jittered(8.0) <= 8.0 for _ in range(100))
    assert len({backoff.jittered(8.0) for _ in range(100)}) > 1


def test_a_call_is_retried_until_it_succeeds() -> None:
    work = failing(5)
    assert run_in_virtual_time(retry(work, at_once, BACKOFF, patience_seconds=60.0)) == 6
    assert work.called_at == [0, 1, 3, 7, 15, 23]


def test_a_call_that_succeeds_is_made_once() -> None:
    work = failing(0)
    assert run_in_virtual_time(retry(work, at_once, BACKOFF, patience_seconds=0.0)) == 1


def test_an_error_that_no_retry_helps_is_raised_at_once() -> None:
    work = Flaky(iter([OSError("away"), ValueError("wrong")]))

    def on(error: Exception) -> float | None:
        return 0.0 if isinstance(error, OSError) else None

    with pytest.raises(ValueError, match="wrong"):
        run_in_virtual_time(retry(work, on, BACKOFF, patience_seconds=60.0))
    assert work.called_at == [0, 1]


def test_the_last_error_is_raised_when_the_next_pause_would_outlast_the_patience() -> None:
    work = failing(100)
    with pytest.raises(OSError, match="away"):
        run_in_virtual_time(retry(work, at_once, BACKOFF, patience_seconds=6.9))
    assert work.called_at == [0, 1, 3]


def test_a_failure_may_ask_for_a_longer_pause_than_the_backoffs() -> None:
    work = failing(2)
    run_in_virtual_time(retry(work, lambda _: 3.0, BACKOFF, patience_seconds=60.0))
    assert work.called_at == [0, 3, 6]


def test_a_pause_that_is_longer_than_the_patience_is_not_begun() -> None:
    work = failing(1)
    with pytest.raises(OSError, match="away"):
        run_in_virtual_time(retry(work, lambda _: 600.0, BACKOFF, patience_seconds=60.0))
    assert work.called_at == [0]


def test_a_cancellation_is_not_retried() -> None:
    work = failing(100)

    async def main() -> None:
        async with asyncio.timeout(10.0):
            await retry(work, at_once, BACKOFF, patience_seconds=1e6)

    with pytest.raises(TimeoutError):
        run_in_virtual_time(main())
    assert work.called_at == [0, 1, 3, 7]


def test_retries_call_no_hooks_that_log_or_count() -> None:
    assert stamina.instrumentation.get_on_retry_hooks() == ()


@dataclass
class Mortal:
    """Lives for each of the given times, and returns how often it has lived."""

    lives: Sequence[float]
    started_at: list[float] = field(default_factory=list)

    async def __call__(self) -> int:
        self.started_at.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.lives[len(self.started_at) - 1])
        return len(self.started_at)


POLICY = RestartPolicy(BACKOFF, healthy_seconds=60.0)


def nth(number: int) -> Callable[[int], bool]:
    return lambda result: result == number


def test_what_ends_is_started_again_later_each_time() -> None:
    child = Mortal([0.0] * 6)
    assert run_in_virtual_time(supervise(child, POLICY, is_final=nth(6))) == 6
    assert child.started_at == [0, 1, 3, 7, 15, 23]


def test_pauses_begin_anew_after_a_healthy_time() -> None:
    child = Mortal([0.0, 0.0, 61.0, 0.0, 0.0])
    run_in_virtual_time(supervise(child, POLICY, is_final=nth(5)))
    assert child.started_at == [0, 1, 3, 65, 67]


def test_restarts_in_a_row_are_limited() -> None:
    limited = RestartPolicy(BACKOFF, healthy_seconds=60.0, max_in_a_row=2)
    assert run_in_virtual_time(supervise(Mortal([0.0] * 9), limited)) == 3
    assert run_in_virtual_time(supervise(Mortal([0.0, 0.0, 61.0, 0.0, 0.0, 0.0]), limited)) == 5


def test_a_limit_of_zero_allows_no_restart() -> None:
    assert run_in_virtual_time(supervise(Mortal([0.0] * 2), RestartPolicy(BACKOFF, 60.0, 0))) == 1


def test_each_restart_is_announced_with_its_pause() -> None:
    announced: list[tuple[int, float]] = []
    run_in_virtual_time(
        supervise(
            Mortal([0.0] * 3), POLICY, is_final=nth(3), on_restart=lambda *restart: announced.append(restart)
        )
    )
    assert announced == [(1, 1.0), (2, 2.0)]


@pytest.mark.parametrize(("stop_at", "num_lives"), [(0.5, 1), (3.5, 2)])
def test_a_stop_ends_a_pause_and_lets_a_run_end(stop_at: float, num_lives: int) -> None:
    """The first stop falls into the first pause, the second into the second run."""
    child = Mortal([0.0, 10.0, 0.0])

    async def main() -> int:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(stop_at, stop.set)
        return await supervise(child, POLICY, stop=stop)

    assert run_in_virtual_time(main()) == num_lives


def test_an_exception_of_the_work_ends_its_supervision() -> None:
    async def fail() -> None:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        run_in_virtual_time(supervise(fail, POLICY))
