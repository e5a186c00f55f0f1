"""The crash record outlives its engine."""

import threading
from pathlib import Path

from diffuserve.protocol.crash_record import CrashRecord, read_crash_record


def test_the_last_attempts_of_every_thread_are_read(tmp_path: Path) -> None:
    box = CrashRecord(tmp_path)
    box.note(["a long attempt", "b"])
    box.note(["c"])
    other = threading.Thread(target=box.note, args=(["d"],))
    other.start()
    other.join()
    assert read_crash_record(tmp_path) == {"c", "d"}


def test_an_engine_that_never_worked_has_no_attempts(tmp_path: Path) -> None:
    assert read_crash_record(tmp_path) == frozenset()
    CrashRecord(tmp_path)
    assert read_crash_record(tmp_path) == frozenset()


def test_a_record_that_is_cut_off_names_no_attempts(tmp_path: Path) -> None:
    CrashRecord(tmp_path).note(["a"])
    [path] = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-2])
    assert read_crash_record(tmp_path) == frozenset()
