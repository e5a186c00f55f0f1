"""Engines that are forked from a zygote do what those that are programs of their own do."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import psutil
import pytest

from diffuserve.agent.config import WorkerConfig
from diffuserve.agent.engines.engine_link import EngineLink
from diffuserve.agent.engines.engine_starter import EngineStarter
from diffuserve.agent.engines.zygote import Zygote, ZygoteEnded
from diffuserve.engine.config import EngineConfig
from diffuserve.engine_process.start import zygote as zygote_process
from diffuserve.protocol.config import EngineProcessConfig, ImageOptions
from diffuserve.protocol.messages import AddJob, EngineReady, EngineRefused, JobFinished
from support.virtual_time import in_virtual_time
from support.waiting import eventually

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux tells the end of a fork")


SMALL = EngineProcessConfig(
    model="tiny-flux",
    engine=EngineConfig(deterministic=True),  # otherwise rounding depends on how busy the cores are
    images=ImageOptions(image_filter="none", file_metadata=False),
)
JOB = {"prompt": "a red circle", "seed": 1, "width": 64, "height": 64, "num_inference_steps": 1}


@asynccontextmanager
async def a_zygote(config: EngineProcessConfig = SMALL) -> AsyncGenerator[Zygote]:
    zygote = await Zygote.start(config)
    try:
        yield zygote
    finally:
        await zygote.close()


@asynccontextmanager
async def starting(zygote: Zygote | None) -> AsyncGenerator[EngineStarter]:
    """Yield a starter that has this zygote, as if one had been prepared."""
    starter = EngineStarter(WorkerConfig(server="", engine_process=SMALL))
    with patch.object(starter, "_zygote", zygote):
        yield starter


async def drawn(link: EngineLink) -> bytes:
    """Have an engine draw an image, and return its file."""
    async for message in link.messages():
        assert not isinstance(message, EngineRefused)
        if isinstance(message, EngineReady):
            link.send(AddJob(attempt="a", input=JOB, folder=str(link.job_folder("a"))))
        elif isinstance(message, JobFinished):
            return Path(message.files[0].path).read_bytes()
    raise AssertionError("the engine ended")


async def ended(link: EngineLink) -> None:
    """Wait for the end of an engine's messages."""
    async for _message in link.messages():
        pass


async def test_engines_of_a_zygote_draw_what_a_program_of_its_own_draws() -> None:
    async with a_zygote() as zygote, starting(zygote) as forking, starting(None) as executing:
        files, pids = [], []
        for starter in (forking, forking, executing):
            link = await EngineLink.start(partial(starter.start, SMALL))
            files.append(await drawn(link))
            pids.append(link.pid)
            parents = [parent.pid for parent in psutil.Process(link.pid).parents()]
            assert (zygote.pid in parents) == (starter is forking)
            assert await link.close() == -signal.SIGKILL
        assert len(set(files)) == 1
        assert len(set(pids)) == 3


async def test_a_zygote_that_holds_no_model_forks_engines_of_any() -> None:
    zygote = await Zygote.start(SMALL, holds_model=False)
    try:
        async with starting(zygote) as forking, starting(None) as executing:
            other = replace(SMALL, model="tiny-sd")
            forked = await EngineLink.start(partial(forking.start, other))
            executed = await EngineLink.start(partial(executing.start, other))
            assert zygote.pid in [parent.pid for parent in psutil.Process(forked.pid).parents()]
            assert await drawn(forked) == await drawn(executed)
            await forked.close()
            await executed.close()
    finally:
        await zygote.close()


def test_a_zygote_that_holds_no_model_has_imported_the_engine() -> None:
    program = (
        "import sys; from diffuserve.engine_process.start.zygote import import_engine; import_engine(); "
        "sys.exit('diffuserve.engine.loading' not in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


async def test_a_model_that_is_ordered_once_a_zygote_holds_another_is_drawn_itself() -> None:
    starter = EngineStarter(WorkerConfig(server="", engine_process=SMALL, model_orders=True))
    await starter.prepare_zygote()
    try:
        async with starting(None) as executing:
            other = replace(SMALL, model="tiny-sd")
            ordered = await EngineLink.start(partial(starter.start, other))
            executed = await EngineLink.start(partial(executing.start, other))
            assert await drawn(ordered) == await drawn(executed)
            await ordered.close()
            await executed.close()
    finally:
        await starter.close()


async def test_what_ends_an_engine_ends_it_alone_and_the_zygotes_end_ends_its_engines() -> None:
    async with a_zygote() as zygote, starting(zygote) as starter:
        start = partial(starter.start, SMALL)
        first, second = await EngineLink.start(start), await EngineLink.start(start)
        os.kill(first.pid, signal.SIGSEGV)
        await ended(first)
        assert await first.close() == -signal.SIGSEGV
        assert psutil.pid_exists(second.pid)
        engine = psutil.Process(second.pid)
        os.kill(zygote.pid, signal.SIGKILL)
        await ended(second)
        await eventually(lambda: not engine.is_running())
        assert await second.close() == -signal.SIGKILL
        assert not zygote.is_alive
        with pytest.raises(ZygoteEnded):
            await zygote.fork(SMALL, Path("/nowhere"))
        third = await EngineLink.start(start)  # as a program of its own
        assert psutil.Process(third.pid).ppid() == os.getpid()
        await third.close()


async def test_a_signal_to_all_processes_leaves_a_zygote_and_its_engines() -> None:
    async with a_zygote() as zygote, starting(zygote) as starter:
        first = await EngineLink.start(partial(starter.start, SMALL))
        for number in (signal.SIGTERM, signal.SIGINT):
            for pid in (zygote.pid, first.pid):
                os.kill(pid, number)
        second = await EngineLink.start(partial(starter.start, SMALL))
        assert zygote.pid in [parent.pid for parent in psutil.Process(second.pid).parents()]
        assert await drawn(first) == await drawn(second)
        await first.close()
        await second.close()


async def test_a_zygote_that_cannot_load_the_model_tells_so_by_its_end(tmp_path: Path) -> None:
    with pytest.raises(ZygoteEnded):
        await Zygote.start(EngineProcessConfig(model=str(tmp_path / "nothing")))


def test_weights_that_are_large_beside_the_machine_are_not_held_twice() -> None:
    """The engine reads them itself then; what it draws is tested above."""
    with patch.object(zygote_process, "memory_limit", return_value=1 << 20):
        assert zygote_process.prepared(SMALL) is None
    held = zygote_process.prepared(SMALL)
    assert held is not None
    assert held.name == SMALL.model


def test_a_process_with_several_threads_is_not_forked() -> None:
    stay = threading.Event()
    thread = threading.Thread(target=stay.wait)
    thread.start()
    try:
        with pytest.raises(RuntimeError, match="can be forked with one alone"):
            zygote_process.check_one_thread()
    finally:
        stay.set()
        thread.join()


@in_virtual_time
async def test_a_zygote_is_prepared_a_while_after_an_engine_is_ready_and_once() -> None:
    started: list[EngineProcessConfig] = []

    async def start(config: EngineProcessConfig, holds_model: bool) -> Zygote:
        assert holds_model
        started.append(config)
        if len(started) == 1:
            raise ZygoteEnded
        return Zygote.__new__(Zygote)

    with (
        patch.object(Zygote, "start", start),
        patch.object(Zygote, "is_alive", True, create=True),
    ):
        starter = EngineStarter(WorkerConfig(server="", engine_process=SMALL))
        keeping = asyncio.create_task(starter.keep_zygote())
        for expected in (1, 2, 2):  # the first could not be prepared, the second lives
            starter.want_zygote()
            before = len(started)
            await asyncio.sleep(1.0)
            assert len(started) == before
            await asyncio.sleep(60.0)
            assert len(started) == expected
        keeping.cancel()
