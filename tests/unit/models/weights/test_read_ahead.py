"""Files are read once, in blocks, and only what is not in the page cache."""

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import psutil
import pytest

from diffuserve.domain.models.parts import ALL_PARTS
from diffuserve.models.registry import read_weights_ahead, weight_files
from diffuserve.models.weights import read_ahead
from diffuserve.models.weights.read_ahead import read_into_cache, start_reading
from support.waiting import HANG_SECONDS

BLOCK = 4096


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(bytes(3 * BLOCK + 10))
    return path


@pytest.fixture
def never_cached() -> Iterator[None]:
    """Have nothing be known of the cache, as on some file systems."""
    with patch.object(read_ahead, "_IF_CACHED", 0):
        yield


@pytest.mark.usefixtures("never_cached")
def test_every_byte_of_a_file_that_is_not_cached_is_read(file: Path) -> None:
    assert read_into_cache([file, file], BLOCK) == 2 * file.stat().st_size


def test_what_is_cached_is_not_read_again(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        try:
            os.preadv(opened.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
        except OSError:
            pytest.skip("this file system does not tell what is cached")
    assert read_into_cache([file], BLOCK) == 0


def test_a_block_that_only_begins_in_the_cache_is_read(file: Path) -> None:
    """The kernel reads ahead of whoever reads the block before."""
    read = os.preadv

    def preadv(descriptor: int, buffers: Sequence[bytearray], offset: int, flags: int = 0) -> int:
        if flags and offset % BLOCK:
            raise BlockingIOError
        return read(descriptor, buffers, offset)

    with patch.object(os, "preadv", preadv), patch.object(read_ahead, "_IF_CACHED", 1):
        assert read_into_cache([file], BLOCK) == file.stat().st_size


@pytest.mark.usefixtures("never_cached")
def test_files_that_would_push_one_another_out_are_left_alone(file: Path) -> None:
    memory = SimpleNamespace(available=file.stat().st_size)
    with patch.object(psutil, "virtual_memory", return_value=memory):
        assert read_into_cache([file], BLOCK) == 0


@pytest.mark.usefixtures("never_cached")
def test_a_file_that_is_not_there_is_left_to_who_needs_it(file: Path) -> None:
    assert read_into_cache([file.with_name("nothing"), file], BLOCK) == 0


@pytest.mark.usefixtures("never_cached")
def test_blocks_are_read_by_several_threads_at_a_time(file: Path) -> None:
    together = threading.Barrier(4)
    read = os.preadv

    def preadv(descriptor: int, buffers: Sequence[bytearray], offset: int) -> int:
        together.wait(HANG_SECONDS)
        return read(descriptor, buffers, offset)

    with patch.object(os, "preadv", preadv):
        assert read_into_cache([file, file], 2 * BLOCK) == 2 * file.stat().st_size


def test_a_thread_reads_what_is_found() -> None:
    found: list[Path] = []

    def find() -> list[Path]:
        found.extend(weight_files("tiny-flux", ALL_PARTS))
        return found

    thread = start_reading(find)
    thread.join(HANG_SECONDS)
    assert not thread.is_alive()
    assert {file.suffix for file in found} == {".safetensors"}


def test_a_model_that_cannot_be_opened_is_left_to_who_loads_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    read_weights_ahead(str(tmp_path), ALL_PARTS).join(HANG_SECONDS)
    assert capfd.readouterr().err == ""
