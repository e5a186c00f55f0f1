"""Fixtures that several folders share.

Those that need torch import it themselves: most unit tests do not, and it takes seconds.
"""

import asyncio
import gc
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from httpx import create_ssl_context

from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.store import JobStore
from diffuserve.models.machine.torch_environment import prepare_torch
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.testing.fake_clock import FakeClock
from support.empty_databases import EmptyDatabases
from support.faulty_proxy import FaultyProxy
from support.log_state import restored_logging
from support.postgres import PostgresServer
from support.s3 import S3Server
from support.scripted_server import ScriptedServer, scripted
from support.shape_checks import check_shapes_where_there_are_any
from support.valkey import ValkeyServer
from support.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from diffuserve.engine.engine import Engine
    from diffuserve.models.pipelines.base import PackedPipeline, Pipeline
    from diffuserve.testing.fake_pipeline import FakePipeline

# A shell starts what runs in its background deaf to Ctrl-C, and children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


prepare_torch()  # as our commands do, before a test imports torch
check_shapes_where_there_are_any()  # in modules that a test imports from here on

# Reading the certificates of authorities takes longer than most tests, and every client would do it.
httpx._transports.default.create_ssl_context = cache(create_ssl_context)  # type: ignore[attr-defined]

# Clients of tests wait for progress: on a busy machine httpx's own five seconds pass.
for _phase in ("connect", "read", "write", "pool"):
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, _phase, HANG_SECONDS)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Search for garbage only among what tests make: imports and collected tests are millions of objects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    """Undo what a test, or a command that it runs, configures."""
    with restored_logging():
        yield


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Run each operation on one thread, as in deterministic mode.

    These tensors are small: on a busy machine two threads mostly wait for one another.
    """
    if "torch" not in sys.modules:  # nor needed by these tests, and it takes seconds
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_engine() -> "Iterator[Engine]":
    """The bundled model in float32, loaded once."""
    from diffuserve.engine.engine import Engine

    with Engine.load("tiny-flux", device="cpu", dtype="float32") as engine:
        yield engine


@pytest.fixture(scope="session")
def small_unet(tmp_path_factory: pytest.TempPathFactory) -> "PackedPipeline":
    """A random checkpoint of SDXL's layout in float32, loaded once."""
    from diffuserve.testing.unet_checkpoints import write_unet_checkpoint

    return _loaded(write_unet_checkpoint(tmp_path_factory.mktemp("model") / "small-unet", seed=5))


@pytest.fixture(scope="session")
def small_wan(tmp_path_factory: pytest.TempPathFactory) -> "PackedPipeline":
    """A random checkpoint of Wan's layout in float32, which draws single images by default, loaded once."""
    from diffuserve.testing.wan_checkpoints import write_wan_checkpoint

    folder = write_wan_checkpoint(tmp_path_factory.mktemp("model") / "small-wan", kind="tiny", seed=5)
    (folder / "diffuserve.json").write_text(
        '{"num_frames": 1, "width": 64, "height": 64, "num_inference_steps": 2}'
    )
    return _loaded(folder)


@pytest.fixture(scope="session")
def small_qwen_image(tmp_path_factory: pytest.TempPathFactory) -> "PackedPipeline":
    """A random checkpoint of Qwen-Image's layout in float32, loaded once."""
    from diffuserve.testing.qwen_image_checkpoints import write_qwen_image_checkpoint

    folder = write_qwen_image_checkpoint(tmp_path_factory.mktemp("model") / "small-qwen-image", seed=5)
    (folder / "diffuserve.json").write_text('{"width": 64, "height": 64, "num_inference_steps": 2}')
    return _loaded(folder)


@pytest.fixture(scope="session")
def small_flux2(tmp_path_factory: pytest.TempPathFactory) -> "PackedPipeline":
    """A random checkpoint of FLUX.2 klein's layout in float32, which is guided by default, loaded once."""
    from diffuserve.testing.flux2_checkpoints import write_flux2_checkpoint

    folder = write_flux2_checkpoint(tmp_path_factory.mktemp("model") / "small-flux2", kind="base", seed=5)
    (folder / "diffuserve.json").write_text(
        '{"width": 64, "height": 64, "num_inference_steps": 2, "max_sequence_length": 64}'
    )
    return _loaded(folder)


@pytest.fixture(scope="session")
def small_z_image(tmp_path_factory: pytest.TempPathFactory) -> "PackedPipeline":
    """A random checkpoint of Z-Image's layout in float32, which is guided by default, loaded once."""
    from diffuserve.testing.z_image_checkpoints import write_z_image_checkpoint

    folder = write_z_image_checkpoint(tmp_path_factory.mktemp("model") / "small-z-image", seed=5)
    (folder / "diffuserve.json").write_text('{"width": 64, "height": 64, "num_inference_steps": 2}')
    return _loaded(folder)


@pytest.fixture(scope="session")
def small_any(tmp_path_factory: pytest.TempPathFactory) -> "Pipeline":
    """A random Stable Diffusion 3, which diffusers runs, in float32, loaded once."""
    import torch

    from diffuserve.models.registry import load_pipeline
    from support.tiny_pipelines.folders import tiny_folder

    folder = tiny_folder("sd3", tmp_path_factory.mktemp("model"))
    (folder / "diffuserve.json").write_text('{"width": 64, "height": 64, "num_inference_steps": 2}')
    return load_pipeline(str(folder), LoadPlan(torch.device("cpu"), torch.float32))


def _loaded(folder: Path) -> "PackedPipeline":
    import torch

    from diffuserve.models.pipelines.base import packed
    from diffuserve.models.registry import load_pipeline

    return packed(load_pipeline(str(folder), LoadPlan(torch.device("cpu"), torch.float32)))


@pytest.fixture
def fake() -> "FakePipeline":
    from diffuserve.testing.fake_pipeline import FakePipeline

    return FakePipeline()


@pytest.fixture
def fake_engine(fake: "FakePipeline") -> "Iterator[Engine]":
    from diffuserve.engine.config import EngineConfig
    from diffuserve.engine.engine import Engine

    with Engine(fake, EngineConfig(token_budget=10_000)) as engine:
        yield engine


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A real server; it may lose commits when the machine loses power, which no test brings about.

    Not in pytest's folder, which is closed to the user that it runs as when we are root.
    """
    folder = Path(tempfile.mkdtemp(prefix="diffuserve-postgres-"))
    folder.chmod(0o755)
    with PostgresServer(folder / "data", fsync=False) as server:
        yield server
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyServer]:
    """A real server, shared by tests that leave it running."""
    with ValkeyServer() as server:
        yield server


@pytest.fixture
def own_valkey() -> Iterator[ValkeyServer]:
    """A server of its own for a test that kills or restarts it."""
    with ValkeyServer() as server:
        yield server


@pytest.fixture
async def elsewhere() -> AsyncIterator[ScriptedServer]:
    """A scripted server of a third party, which may respond in any way."""
    async with scripted() as server:
        yield server


@pytest.fixture
def bucket(s3: S3Server) -> str:
    return s3.create_bucket()


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[FaultyProxy]:
    """A faulty proxy between the bucket and its clients."""
    with FaultyProxy(s3.url) as proxy:
        yield proxy


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store_config() -> StoreConfig:
    return StoreConfig()


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty SQLite database with its schema; copying it is faster than migrating another."""
    path = tmp_path_factory.mktemp("sqlite") / "jobs.db"
    asyncio.run(_migrate(f"sqlite:///{path}"))
    return path


@pytest.fixture(scope="session")
def migrated_database(postgres: PostgresServer) -> str:
    """The name of an empty PostgreSQL database with its schema, to be copied."""
    asyncio.run(_migrate(postgres.create_database("migrated")))
    return "migrated"


@pytest.fixture(scope="session")
def empty_databases(postgres: PostgresServer, migrated_database: str) -> EmptyDatabases:
    return EmptyDatabases(postgres, migrated_database)


async def _migrate(url: str) -> None:
    store = JobStore(url, MemoryEventBus(), StoreConfig())
    await store.open()
    await store.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database of each kind, with its schema and nothing else."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("migrated_file"), tmp_path / "jobs.db")
        yield f"sqlite:///{tmp_path}/jobs.db"
        return
    databases: EmptyDatabases = request.getfixturevalue("empty_databases")
    with databases.one() as url:
        yield url


@pytest.fixture
def bus() -> MemoryEventBus:
    return MemoryEventBus()


@pytest.fixture
async def job_store(
    database_url: str, bus: MemoryEventBus, store_config: StoreConfig, clock: FakeClock
) -> AsyncIterator[JobStore]:
    store = JobStore(database_url, bus, store_config, clock)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def other_store(
    job_store: JobStore, database_url: str, store_config: StoreConfig, clock: FakeClock
) -> AsyncIterator[JobStore]:
    """A second control plane on the same database."""
    store = JobStore(database_url, MemoryEventBus(), store_config, clock)
    await store.open()
    yield store
    await store.close()
