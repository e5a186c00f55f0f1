"""Assembly of control planes and workers from settings."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from diffuserve.agent.config import WorkerConfig
from diffuserve.domain.errors import InvalidParams, ServerUnavailable
from diffuserve.domain.tenant import Role
from diffuserve.events.memory import MemoryEventBus
from diffuserve.protocol.config import EngineProcessConfig, ImageOptions
from diffuserve.protocol.nodes import Nodes
from diffuserve.quotas.local import LocalQuotas
from diffuserve.safety.processes.intake_pool import UnreadableImage
from diffuserve.settings import Settings
from diffuserve.wiring import worker as wiring
from diffuserve.wiring.control import control_plane, open_bus, open_quotas, open_store, running
from diffuserve.wiring.safety import choose_image_filter, open_intake, open_prompt_filter
from diffuserve.wiring.worker import checked, replica, run
from support.image_files import png


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "data", prompt_filter="none")


async def test_without_valkey_everything_stays_in_the_process(settings: Settings) -> None:
    async with open_bus(settings) as bus, open_quotas(settings) as quotas:
        assert isinstance(bus, MemoryEventBus)
        assert isinstance(quotas, LocalQuotas)


async def test_the_data_folder_is_created_for_sqlite(settings: Settings) -> None:
    async with open_store(settings):
        assert (settings.data_dir / "diffuserve.db").exists()


async def test_a_database_that_cannot_be_opened_is_named_without_its_statement(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'missing' / 'jobs.db'}"
    with pytest.raises(
        ServerUnavailable, match=r"cannot open the database .*: No such file or directory; check its folder"
    ) as refused:
        async with open_store(Settings(database_url=url)):
            raise AssertionError("it must not open")
    assert len(str(refused.value).splitlines()) == 1


async def test_authentication_follows_from_the_keys(settings: Settings) -> None:
    async with control_plane(settings) as plane:
        assert not plane.has_auth
    async with open_store(settings) as store:
        await store.keys.create(Role.OPERATOR)
    async with control_plane(settings) as plane:
        assert plane.has_auth
    async with control_plane(settings, no_auth=True) as plane:
        assert not plane.has_auth


async def test_background_work_ends_with_its_block() -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with running(work()):
        await asyncio.sleep(0)
        assert not ended.is_set()
    assert ended.is_set()


def test_filters_may_be_switched_off(settings: Settings) -> None:
    assert open_prompt_filter(settings) is None
    assert choose_image_filter(Settings.with_options(image_filter="none")) is None


def test_an_unknown_image_filter_is_refused_before_anything_is_loaded() -> None:
    config = EngineProcessConfig(images=ImageOptions(image_filter="nix"))
    with pytest.raises(InvalidParams, match="image_filter='nix'"):
        checked(config)


def test_an_unknown_plan_is_refused_before_anything_is_started() -> None:
    with pytest.raises(InvalidParams, match="parallel='nix'"):
        checked(EngineProcessConfig(parallel="nix"))
    assert checked(EngineProcessConfig(parallel="sequence=2")).parallel == "sequence=2"


@pytest.mark.parametrize(
    ("rank", "expected"), [(None, "run_worker"), (0, "run_worker"), (1, "run_node"), (3, "run_node")]
)
def test_only_the_first_machine_runs_the_agent(
    rank: int | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []

    def record(name: str) -> Callable[..., int]:
        return lambda config, *fetch: called.append(name) or 0  # type: ignore[func-returns-value]

    for name in ("run_worker", "run_node"):
        monkeypatch.setattr(wiring, name, record(name))
    nodes = None if rank is None else Nodes(4, rank, "10.0.0.7", 29_500, Path("secret"))
    assert run(WorkerConfig(server="http://x", nodes=nodes)) == 0
    assert called == [expected]


def test_a_replica_keeps_all_but_device_name_and_port(tmp_path: Path) -> None:
    settings = Settings.with_options(cache_dir=tmp_path, model="m", token_budget=512)
    config = replace(settings.worker, name="pair", metrics_port=9100, labels={"zone": "a"})
    second = replica(config, settings, 1)
    assert (second.name, second.metrics_port, second.visible_device) == ("pair-1", 9101, "1")
    assert (second.labels, second.engine_process.model) == ({"zone": "a"}, "m")
    assert second.engine_process.engine.token_budget == 512


async def test_a_filter_that_cannot_judge_lets_the_server_start_and_refuses_images(
    settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    missing = settings.model_copy(update={"image_filter": f"transformers:{tmp_path}"})
    async with open_intake(missing) as pool:
        with pytest.raises(UnreadableImage, match="image classifier"):
            await pool.read(b"", "ada")
    assert "requests cannot bring images" in caplog.text
    with pytest.raises(InvalidParams, match="opensfw"):
        async with open_intake(settings.model_copy(update={"image_filter": "opensfw"})):
            raise AssertionError("it must not open")


async def test_images_that_nothing_judges_are_told_of(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_intake(settings.model_copy(update={"image_filter": "none"})) as pool:
        read = await pool.read(png(), "ada")
    assert (read.width, read.height, read.verdict) == (64, 48, None)
    assert "NO IMAGE FILTER" in caplog.text
