"""Waits in vain: how long a download waits for its peers before it reads what others were to read."""

import pytest

from diffuserve.modelstore.patience import Patience

WAIT = 5.0
STEP = 256 * 1024


@pytest.fixture
def patience() -> Patience:
    """Return the patience of a download of 100 pieces that begins at 0, and whose peers are named then."""
    patience = Patience(WAIT, 100, 0.0)
    patience.meet(0.0)
    return patience


def waits(patience: Patience, *times: float) -> list[int]:
    """Return the number of waits after each time."""
    found = []
    for now in times:
        patience.wait(now)
        found.append(patience.num_waits)
    return found


def test_each_time_in_which_nothing_moves_is_a_wait_in_vain(patience: Patience) -> None:
    patience.move(0.0)
    assert waits(patience, 4.9, 5.0, 9.9, 10.0, 15.0) == [0, 1, 1, 2, 3]


def test_the_first_movement_is_waited_for_longer(patience: Patience) -> None:
    """Others may be reading their first pieces, many at once of a slow bucket."""
    assert waits(patience, 29.9, 30.0) == [0, 1]


def test_without_peers_a_minute_is_waited_and_forgotten() -> None:
    patience = Patience(WAIT, 100, 0.0)
    assert waits(patience, 59.9, 60.0) == [0, 1]
    patience.meet(61.0)
    assert waits(patience, 90.9, 91.0) == [0, 1]


def test_a_wait_lasts_longer_where_pieces_come_seldom(patience: Patience) -> None:
    patience.move(8.0)
    assert waits(patience, 23.9, 24.0) == [0, 1]


def test_a_wait_never_lasts_longer_than_without_peers(patience: Patience) -> None:
    patience.move(500.0)
    assert waits(patience, 559.9, 560.0) == [0, 1]


def test_bytes_and_pieces_at_peers_are_movements(patience: Patience) -> None:
    patience.move(0.0)
    patience.look(STEP, 100, 4.0)
    patience.look(STEP, 99, 8.0)
    assert waits(patience, 15.9, 16.0) == [0, 1]


def test_a_peer_that_trickles_is_as_good_as_silent(patience: Patience) -> None:
    patience.move(0.0)
    for second in range(1, 6):
        patience.look(second * STEP // 6, 100, float(second))
    assert waits(patience, 5.0) == [1]


def test_a_peer_that_comes_and_goes_moves_nothing(patience: Patience) -> None:
    patience.move(0.0)
    for second, num_missing in enumerate((0, 100, 0, 100, 0), 1):
        patience.look(0, num_missing, float(second))
    assert waits(patience, 5.9, 6.0) == [0, 1]


def test_waits_before_the_first_bytes_are_forgotten_and_later_ones_but_for_one(patience: Patience) -> None:
    assert waits(patience, 30.0, 60.0) == [1, 2]
    patience.look(STEP, 100, 61.0)
    assert patience.num_waits == 0
    assert waits(patience, 200.0, 400.0, 600.0) == [1, 2, 3]
    patience.look(2 * STEP, 100, 601.0)
    assert patience.num_waits == 1
