"""An engine counts as stuck if it sends no heartbeats, or is occupied and makes no progress."""

from diffuserve.agent.config import WorkerConfig
from diffuserve.agent.engines.watchdog import Pulse, stall_reason
from diffuserve.protocol.messages import EngineHeartbeat

CONFIG = WorkerConfig(server="http://x", stall_seconds=60.0, silence_seconds=10.0)


def test_an_engine_that_makes_progress_is_not_stuck() -> None:
    assert stall_reason(Pulse(heartbeat_at=99.0, progress_at=50.0), True, 100.0, CONFIG) is None


def test_an_idle_engine_need_not_make_progress() -> None:
    assert stall_reason(Pulse(heartbeat_at=99.0, progress_at=0.0), False, 100.0, CONFIG) is None


def test_an_occupied_engine_without_progress_is_stuck() -> None:
    reason = stall_reason(Pulse(heartbeat_at=99.0, progress_at=30.0), True, 100.0, CONFIG)
    assert reason == "occupied, and no progress for 70 s"


def test_an_engine_without_heartbeats_is_stuck_whatever_its_progress() -> None:
    for is_occupied in (False, True):
        pulse = Pulse(heartbeat_at=89.0, progress_at=99.0)
        assert stall_reason(pulse, is_occupied, 100.0, CONFIG) == "no heartbeat for 11 s"


def test_both_limits_are_exclusive() -> None:
    assert stall_reason(Pulse(heartbeat_at=90.0, progress_at=40.0), True, 100.0, CONFIG) is None


def test_an_engine_with_long_steps_may_take_ten_of_them() -> None:
    pulse = Pulse(heartbeat_at=99.0, progress_at=0.0, longest_step_seconds=11.0)
    assert stall_reason(pulse, True, 100.0, CONFIG) is None
    patient = WorkerConfig(server="", silence_seconds=99.0)
    assert stall_reason(pulse, True, 110.0, patient) is None
    assert stall_reason(pulse, True, 111.0, patient) is not None


def test_a_first_step_that_should_be_long_may_take_ten_times_that_and_a_short_one_may_not() -> None:
    patient = WorkerConfig(server="", stall_seconds=60.0, silence_seconds=1e9)
    long, short = (Pulse(99.0, 0.0, predicted_seconds=seconds) for seconds in (20.0, 0.5))
    assert stall_reason(long, True, 199.0, patient) is None
    assert stall_reason(long, True, 201.0, patient) == "occupied, and no progress for 201 s"
    assert stall_reason(short, True, 61.0, patient) == "occupied, and no progress for 61 s"


def test_what_is_predicted_counts_no_longer_than_the_work_that_it_is_of() -> None:
    busy = EngineHeartbeat(num_moves=1, num_unfinished=1, predicted_seconds=20.0)
    over = EngineHeartbeat(num_moves=1, num_unfinished=1)
    pulse = Pulse(0.0, 0.0, num_moves=1).after_heartbeat(busy, 50.0)
    assert stall_reason(pulse, True, 59.0, CONFIG) is None
    assert stall_reason(pulse.after_heartbeat(over, 61.0), True, 61.0, CONFIG) is not None


def test_an_engine_whose_requests_all_wait_for_adapters_is_not_stuck_and_is_watched_from_then_on() -> None:
    def beat(num_awaiting: int) -> EngineHeartbeat:
        return EngineHeartbeat(num_moves=3, num_unfinished=2, num_awaiting=num_awaiting)

    pulse = Pulse(heartbeat_at=0.0, progress_at=0.0, num_moves=3).after_heartbeat(beat(2), 500.0)
    assert stall_reason(pulse, True, 501.0, CONFIG) is None
    here = pulse.after_heartbeat(beat(1), 559.0)
    assert stall_reason(here, True, 560.0, CONFIG) is None
    assert stall_reason(here.after_heartbeat(beat(1), 561.0), True, 561.0, CONFIG) is not None


def test_a_heartbeat_is_progress_only_if_it_counts_more_moves() -> None:
    pulse = Pulse(heartbeat_at=0.0, progress_at=0.0, num_moves=3)
    same = pulse.after_heartbeat(EngineHeartbeat(num_moves=3, num_unfinished=1), 5.0)
    more = pulse.after_heartbeat(EngineHeartbeat(num_moves=4, num_unfinished=1), 5.0)
    assert (same.heartbeat_at, same.progress_at) == (5.0, 0.0)
    assert (more.heartbeat_at, more.progress_at) == (5.0, 5.0)


def test_an_engine_that_starts_anew_counts_from_zero_and_so_makes_progress() -> None:
    pulse = Pulse(heartbeat_at=0.0, progress_at=0.0, num_moves=3)
    assert pulse.after_heartbeat(EngineHeartbeat(num_moves=0, num_unfinished=0), 5.0).progress_at == 5.0


def test_a_heartbeat_carries_the_longest_step() -> None:
    heartbeat = EngineHeartbeat(num_moves=1, num_unfinished=1, longest_step_seconds=7.0)
    assert Pulse(0.0, 0.0).after_heartbeat(heartbeat, 1.0).longest_step_seconds == 7.0


def test_progress_of_a_job_is_no_heartbeat() -> None:
    pulse = Pulse(heartbeat_at=1.0, progress_at=1.0).after_progress(5.0)
    assert (pulse.heartbeat_at, pulse.progress_at) == (1.0, 5.0)
