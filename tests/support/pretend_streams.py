"""CUDA streams and events as a pretended device has them, and the order that they give to its work.

All work is done at once, on the CPU; what is kept is whether a real device could have done it in another
order. A stream numbers its work. It knows how far other streams are that it has waited for, and the host
knows how far each is that it has waited for. Work that another stream issued, and that neither of the two
knows to be done, may not be done yet: to read its result is a race, and so is to overwrite what it reads.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from support.pretend_log import CudaLog


class StreamRace(RuntimeError):
    """Work on a stream reads what another may not have written yet, or overwrites what it may still read."""


@dataclass
class Written:
    """The last work that wrote to a tensor's memory, and that of each stream which read it since.

    Views of a tensor share the object.
    """

    stream: "PretendStream | None" = None
    number: int = 0
    readers: "dict[PretendStream, int]" = field(default_factory=dict)


_STREAMS: "WeakSet[PretendStream]" = WeakSet()
_NUMBERS = count(1)


class PretendStream:
    """Stands in for `torch.cuda.Stream`."""

    def __init__(self, device: Any = None, priority: int = 0, name: str | None = None) -> None:
        self.device, self.name = device, name or f"stream {next(_NUMBERS)}"
        self.num_issued = 0
        self.known: dict[PretendStream, int] = {}
        _STREAMS.add(self)

    def synchronize(self) -> None:
        ORDER.log.sync("stream")
        ORDER.finish(self)

    def wait_event(self, event: "PretendEvent") -> None:
        for stream, number in event.known.items():
            self.known[stream] = max(self.known.get(stream, 0), number)

    def record_event(self) -> "PretendEvent":
        event = PretendEvent()
        event.record(self)
        return event

    def wait_stream(self, stream: "PretendStream") -> None:
        self.wait_event(stream.record_event())

    def knows(self, stream: "PretendStream | None", number: int) -> bool:
        """Return whether a stream's work is done before this stream's next, up to that of this number."""
        if stream is None or stream is self:
            return True
        return max(self.known.get(stream, 0), ORDER.num_finished(stream)) >= number


class PretendEvent:
    """Stands in for `torch.cuda.Event`."""

    def __init__(self, **_options: Any) -> None:
        self.known: dict[PretendStream, int] = {}

    def record(self, stream: PretendStream | None = None) -> None:
        chosen = stream or ORDER.current()
        self.known = {**chosen.known, chosen: chosen.num_issued}

    def synchronize(self) -> None:
        ORDER.log.sync("event")
        for stream, number in self.known.items():
            ORDER.finish(stream, number)

    def query(self) -> bool:
        return True

    def elapsed_time(self, _end: "PretendEvent") -> float:
        return 1.0


@dataclass
class _Order:
    """The stream of each thread, and how far the host has seen each stream get."""

    log: CudaLog = field(default_factory=CudaLog)
    default: PretendStream = field(default_factory=lambda: PretendStream(name="default stream"))
    finished: "WeakKeyDictionary[PretendStream, int]" = field(default_factory=WeakKeyDictionary)
    threads: threading.local = field(default_factory=threading.local)

    def current(self) -> PretendStream:
        chosen: PretendStream = getattr(self.threads, "stream", self.default)
        return chosen

    def num_finished(self, stream: PretendStream) -> int:
        return self.finished.get(stream, 0)

    def finish(self, stream: PretendStream, number: int | None = None) -> None:
        """Have the host see that a stream is done, up to a piece of work."""
        done = stream.num_issued if number is None else number
        for each, upto in {**stream.known, stream: done}.items():
            self.finished[each] = max(self.num_finished(each), upto)

    def finish_all(self) -> None:
        for stream in list(_STREAMS):
            self.finish(stream)

    def wait(self, kind: str) -> None:
        """Have the host wait for this thread's stream, for a reason that is logged."""
        self.log.sync(kind)
        self.finish(self.current())

    def issue(self, name: str, reads: list[Written], writes: list[Written]) -> None:
        """Number a piece of work of this thread's stream. Raise `StreamRace` if it comes too early."""
        stream = self.current()
        for written in (*reads, *writes):
            if not stream.knows(written.stream, written.number):
                raise _race(name, stream, "uses what", written.stream, "may not have written yet")
        for written in writes:
            for reader, number in written.readers.items():
                if not stream.knows(reader, number):
                    raise _race(name, stream, "overwrites what", reader, "may still read")
        stream.num_issued += 1
        for written in reads:
            written.readers[stream] = stream.num_issued
        for written in writes:
            written.stream, written.number = stream, stream.num_issued
            written.readers.clear()


def _race(name: str, stream: PretendStream, does: str, other: PretendStream | None, may: str) -> StreamRace:
    assert other is not None
    return StreamRace(
        f"{name} on the {stream.name} {does} the {other.name} {may}: have it wait for an event of that "
        "stream first"
    )


ORDER = _Order()


@contextmanager
def on_stream(stream: PretendStream | None) -> Iterator[None]:
    """Stand in for `torch.cuda.stream`."""
    if stream is None:
        yield
        return
    before = ORDER.current()
    ORDER.threads.stream = stream
    try:
        yield
    finally:
        ORDER.threads.stream = before
