"""The process that gets ordered models, against a fake hub."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from diffuserve.engine_process.start import obtain
from diffuserve.models.bundled import bundled_models
from diffuserve.models.folders.folder import VOCABULARY_FILE
from diffuserve.models.folders.names import HUB_COMMITS, full_name
from diffuserve.protocol.config import EngineProcessConfig
from diffuserve.protocol.messages import (
    EngineLoading,
    EngineRefused,
    Message,
    ModelAnnounced,
    ModelsToHave,
    decode,
)
from support.fake_hub import FakeHub, fake_hub, use_hub

NAME = "sd-1.5"
REPO = full_name(NAME)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """The known name, which leads to the bundled model's files here."""
    model = bundled_models()["tiny-sd"]
    files = {
        path.relative_to(model).as_posix(): path.read_bytes() for path in model.rglob("*") if path.is_file()
    }
    with fake_hub(FakeHub(REPO, HUB_COMMITS[REPO], files)) as served:
        use_hub(served, tmp_path / "hub", monkeypatch)
        yield served


@pytest.fixture(autouse=True)
def _stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(obtain, "end_with_agent_alone", lambda: None)
    monkeypatch.setattr(obtain, "configure_logs", lambda _: None)


def told(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], *words: str
) -> list[Message]:
    monkeypatch.setattr("sys.argv", ["obtain", *words])
    obtain.main()
    return [decode(line) for line in capfdbinary.readouterr().out.splitlines()]


def of(model: str) -> tuple[str, str]:
    return ("--config", EngineProcessConfig(model=model).to_json())


def test_a_known_model_is_fetched_once_and_described(
    served: FakeHub, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    [listed] = told(monkeypatch, capfdbinary)
    assert isinstance(listed, ModelsToHave)
    models = {model.name: model for model in listed.models}
    assert (models[NAME].is_here, models[NAME].needs_consent, models["tiny-sd"].is_here) == (
        False,
        True,
        True,
    )
    assert all(model.hub_id in HUB_COMMITS or model.is_here for model in listed.models), (
        "pinned, or they ship"
    )
    *progress, announced = told(monkeypatch, capfdbinary, *of(NAME))
    assert isinstance(announced, ModelAnnounced)
    assert announced.num_bytes > 1_000_000
    first = progress[0]
    assert isinstance(first, EngineLoading)
    fetched = sum(len(content) for name, content in served.files.items() if name != VOCABULARY_FILE)
    assert 0 < first.bytes_read <= first.bytes_total == fetched
    num_requests = len(served.requests)
    [again] = told(monkeypatch, capfdbinary, *of(NAME))
    assert again == announced
    assert len(served.requests) == num_requests
    [listed] = told(monkeypatch, capfdbinary)
    assert isinstance(listed, ModelsToHave)
    assert {model.name: model.is_here for model in listed.models}[NAME]


@pytest.mark.parametrize(
    ("model", "room", "reason"),
    [
        ("owner/evil@" + 40 * "0", 10**12, "orders are for models of known names"),
        ("/etc", 10**12, "orders are for models of known names"),
        (NAME, 1_000, "takes about 0.0 GB for its weights, and the models of this worker may have 0.0 GB"),
    ],
)
def test_what_is_not_known_or_does_not_fit_is_refused_before_its_weights_arrive(
    served: FakeHub,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
    model: str,
    room: int,
    reason: str,
) -> None:
    [refused] = told(monkeypatch, capfdbinary, *of(model), f"--room={room}")
    assert isinstance(refused, EngineRefused)
    assert reason in refused.reason
    assert served.fetched() == []


def test_a_full_disk_is_told_before_the_download(
    served: FakeHub, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(obtain, "_SPARE_BYTES", 1 << 60)
    [refused] = told(monkeypatch, capfdbinary, *of(NAME))
    assert isinstance(refused, EngineRefused)
    assert "GB free; `diffuserve rm` on that machine removes a model" in refused.reason
