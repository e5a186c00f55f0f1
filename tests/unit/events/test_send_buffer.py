"""The queue of messages to other control planes."""

import asyncio

from diffuserve.events.send_buffer import SendBuffer


async def test_messages_are_taken_in_order_and_all_at_once() -> None:
    buffer = SendBuffer(max_bytes=100)
    for message in (b"a", b"bb", b"ccc"):
        buffer.put(message)
    assert buffer.num_bytes == 6
    assert await buffer.take(0.0) == [b"a", b"bb", b"ccc"]
    assert (buffer.num_bytes, buffer.num_dropped) == (0, 0)


async def test_a_full_buffer_drops_the_oldest_messages_and_counts_them() -> None:
    buffer = SendBuffer(max_bytes=100)
    for number in range(50):
        buffer.put(b"%010d" % number)
        assert buffer.num_bytes <= 100
    assert buffer.num_dropped == 40
    assert await buffer.take(0.0) == [b"%010d" % number for number in range(40, 50)]


async def test_a_message_larger_than_the_buffer_is_dropped() -> None:
    buffer = SendBuffer(max_bytes=10)
    buffer.put(b"x" * 11)
    assert (buffer.num_bytes, buffer.num_dropped) == (0, 1)


async def test_a_batch_has_about_a_mebibyte() -> None:
    buffer = SendBuffer(max_bytes=4 << 20)
    for _ in range(4):
        buffer.put(b"x" * (700 << 10))
    assert [len(await buffer.take(0.0)) for _ in range(2)] == [2, 2]


async def test_taking_from_an_empty_buffer_returns_nothing_after_the_timeout() -> None:
    assert await SendBuffer(max_bytes=10).take(0.001) == []


async def test_a_waiting_task_gets_the_next_message() -> None:
    buffer = SendBuffer(max_bytes=10)
    waiting = asyncio.create_task(buffer.take(60.0))
    await asyncio.sleep(0)
    buffer.put(b"a")
    assert await waiting == [b"a"]


async def test_clearing_counts_the_messages_as_dropped() -> None:
    buffer = SendBuffer(max_bytes=100)
    buffer.put(b"a")
    buffer.put(b"b")
    buffer.clear()
    assert (buffer.num_bytes, buffer.num_dropped) == (0, 2)
    assert await buffer.take(0.001) == []
