"""The choice whether a job is decoded where it was denoised."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.jobs.policy.handover import Decoding, QueueLoads, hands_over

DECODING = Decoding(here_seconds=10.0, there_seconds=10.0, latent_bytes=8_000_000)
BUSY = QueueLoads(waiting_jobs=5.0, waiting_seconds=100.0, decode_wait_seconds=0.0, price_ratio=0.1)


def test_a_busy_device_hands_over_to_a_cheaper_one() -> None:
    assert hands_over(DECODING, BUSY)


@pytest.mark.parametrize(
    "around",
    [
        replace(BUSY, waiting_jobs=0.0, waiting_seconds=0.0),
        replace(BUSY, price_ratio=1.0),
        replace(BUSY, decode_wait_seconds=60.0),
    ],
    ids=["nothing waits", "elsewhere it costs as much", "decode workers have enough to do"],
)
def test_a_device_decodes_itself_where_handing_over_does_not_pay(around: QueueLoads) -> None:
    assert not hands_over(DECODING, around)


def test_large_latents_of_a_short_decode_stay() -> None:
    assert not hands_over(Decoding(0.1, 0.1, latent_bytes=500_000_000), BUSY)


POSITIVE = st.floats(0.0, 1e4)
AROUND = st.builds(QueueLoads, POSITIVE, POSITIVE, POSITIVE, st.floats(0.0, 10.0))
DECODINGS = st.builds(Decoding, POSITIVE, POSITIVE, st.integers(0, 10**9))


@given(DECODINGS, AROUND, st.floats(0.0, 1e3))
def test_a_longer_queue_never_speaks_against_it(decoding: Decoding, around: QueueLoads, more: float) -> None:
    longer = replace(
        around, waiting_jobs=around.waiting_jobs + more, waiting_seconds=around.waiting_seconds + more
    )
    assert hands_over(decoding, longer) or not hands_over(decoding, around)


@given(DECODINGS, AROUND, st.floats(0.0, 10.0))
def test_a_higher_price_elsewhere_never_speaks_for_it(
    decoding: Decoding, around: QueueLoads, more: float
) -> None:
    dearer = replace(around, price_ratio=around.price_ratio + more)
    assert hands_over(decoding, around) or not hands_over(decoding, dearer)


@given(DECODINGS, AROUND)
def test_without_a_queue_no_job_moves(decoding: Decoding, around: QueueLoads) -> None:
    assert not hands_over(decoding, replace(around, waiting_jobs=0.0, waiting_seconds=0.0))
