"""Settings from environment variables."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from diffuserve.cli.options import described
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.jobs.job import Band, JobStatus
from diffuserve.domain.models.tiers import TierPolicy, Tiers
from diffuserve.jobs.config import DEFAULT_RETENTION
from diffuserve.settings import Settings
from diffuserve.telemetry.log_config import LogLevel


def test_options_override_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIFFUSERVE_PORT", "9000")
    monkeypatch.setenv("DIFFUSERVE_HOST", "::1")
    settings = Settings.with_options(port=9001, host=None)
    assert (settings.port, settings.host) == (9001, "::1")


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PUBLIC_API_URL", "PORT", "TRUSTED_PROXIES"):
        monkeypatch.setenv(f"DIFFUSERVE_{name}", "")
    assert Settings() == Settings.with_options(public_api_url=None, port=8000)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://u:p@db:5432/jobs", "postgresql://u:p@db:5432/jobs"),
        ("postgres://db/jobs", "postgresql://db/jobs"),
        ("sqlite:////tmp/jobs.db", "sqlite:////tmp/jobs.db"),
    ],
)
def test_the_scheme_of_a_url_chooses_the_database(url: str, expected: str) -> None:
    assert Settings(database_url=url).store_url == expected


def test_the_database_is_in_the_data_folder_by_default(tmp_path: Path) -> None:
    assert Settings(data_dir=tmp_path).store_url == f"sqlite:///{tmp_path}/diffuserve.db"


@pytest.mark.parametrize("url", ["mysql://u:secret@db/jobs", "/var/jobs.db", "db/jobs?password=secret"])
def test_another_database_is_refused_without_showing_its_password(url: str) -> None:
    with pytest.raises(InvalidParams, match="database_url") as refused:
        _ = Settings(database_url=url).store_url
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (None, None),
        ("valkey://cache", "redis://cache"),
        ("valkeys://:p%40ss@cache:6380/2", "rediss://:p%40ss@cache:6380/2"),
        ("redis://u:p@[::1]:6379", "redis://u:p@[::1]:6379"),
        ("rediss://cache/0", "rediss://cache/0"),
    ],
)
def test_valkey_urls_are_translated_for_the_client_library(url: str | None, expected: str | None) -> None:
    assert Settings(valkey_url=url).bus_url == expected


@pytest.mark.parametrize(
    "url",
    [
        "http://:secret@cache",
        "cache:6379",
        "valkey://",
        "valkey://:secret@cache:port",
        "valkey://:secret@cache:65536",
        "valkey://cache/x",
        "valkey://cache?db=1",
    ],
)
def test_another_bus_is_refused_without_showing_its_password(url: str) -> None:
    with pytest.raises(InvalidParams, match="valkey_url") as refused:
        _ = Settings(valkey_url=url).bus_url
    assert "secret" not in str(refused.value)


def test_secrets_are_not_shown() -> None:
    database, valkey = "postgresql://u:s3cret@db/jobs", "valkey://:s3cret@cache"
    settings = Settings(api_key="s3cret", database_url=database, valkey_url=valkey)
    assert "s3cret" not in repr(settings)


def test_lease_and_heartbeat_are_checked_against_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIFFUSERVE_LEASE_SECONDS", "20")
    with pytest.raises(InvalidParams, match="lease_seconds"):
        _ = Settings().store_config
    assert Settings.with_options(heartbeat_seconds=5).store_config.lease_seconds == 20


def test_own_plans_are_added_to_the_bundled_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    gold = {"weight": 32, "max_running": 128, "default_band": "standard", "highest_band": "interactive"}
    monkeypatch.setenv("DIFFUSERVE_PLANS", json.dumps({"gold": gold, "free": {"max_running": 1}}))
    plans = Settings().store_config.plans
    assert set(plans) == {"free", "standard", "pro", "gold"}
    assert (plans["gold"].name, plans["gold"].weight) == ("gold", 32)
    assert plans["gold"].allows(Band.INTERACTIVE)
    assert plans["free"].max_running == 1, "a plan of the same name replaces the bundled one"


@pytest.mark.parametrize(
    "plan",
    [
        {"weight": 0},
        {"weight": float("nan")},
        {"max_running": 0},
        {"max_queued": -1},
        {"max_queued_seconds": 0},
        {"requests_per_second": float("inf")},
        {"max_runing": 3},
        {"highest_band": "urgent"},
        {"default_band": "interactive", "highest_band": "batch"},
        "gold",
    ],
)
def test_an_invalid_plan_is_refused(plan: object) -> None:
    with pytest.raises(ValidationError, match="plan"):
        Settings(plans={"gold": plan})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "tiers", [{"step": [4]}, {"steps": [0]}, {"sizes": ["big"]}, {"policy": "shrink"}, {"steps": 4}]
)
def test_invalid_tiers_are_refused(tiers: object) -> None:
    with pytest.raises(InvalidParams, match="tiers"):
        Settings.with_options(tiers={"tiny-flux": tiers})


def test_tiers_reach_the_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIFFUSERVE_TIERS", '{"tiny-flux": {"steps": [4, 8], "policy": "refuse"}}')
    tiers = Tiers(steps=(4, 8), policy=TierPolicy.REFUSE)
    assert Settings().api_config(auth=True).tiers == {"tiny-flux": tiers}


def test_the_default_plan_must_exist() -> None:
    with pytest.raises(InvalidParams, match="known plans: free, standard, pro"):
        _ = Settings.with_options(default_plan="nix").store_config


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://", "http://[::1", ""])
def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="server"):
        Settings(server=url)


def test_ports_of_webhooks_are_numbers_or_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIFFUSERVE_WEBHOOK_ALLOWED_PORTS", '[443, "8000-8999"]')
    assert Settings().api_config(auth=True).webhook_allowed_ports == ("443", "8000-8999")
    monkeypatch.setenv("DIFFUSERVE_WEBHOOK_ALLOWED_PORTS", "[70000]")
    with pytest.raises(InvalidParams, match="ports are from 1 to 65535"):
        Settings.with_options()


def test_retention_is_set_by_status() -> None:
    kept = Settings(retention_seconds={JobStatus.FAILED: 60.0}).store_config.retention_seconds
    assert kept == {**DEFAULT_RETENTION, JobStatus.FAILED: 60.0}


@pytest.mark.parametrize("seconds", [{"running": 5.0}, {"failed": 0.0}, {"nix": 5.0}])
def test_retention_is_for_final_statuses_and_positive(seconds: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Settings(retention_seconds=seconds)  # type: ignore[arg-type]


def test_the_configuration_of_the_api_follows_from_settings() -> None:
    urls = {"public_api_url": "https://api.example.com", "public_base_url": "https://images.example.com"}
    config = Settings.with_options(**urls, default_model="m").api_config(auth=True)
    assert config.auth
    assert config.public_api_url == "https://api.example.com"
    assert config.public_base_url == "https://images.example.com"
    assert config.default_model == "m"


def test_the_worker_takes_its_server_and_key_from_the_settings() -> None:
    settings = Settings.with_options(server="https://server", api_key="s3cret", drain_seconds=5)
    worker = settings.worker
    assert (worker.server, worker.api_key, worker.drain_seconds) == ("https://server", "s3cret", 5.0)
    assert "s3cret" not in repr(worker)
    assert worker.engine_process == settings.engine_process


def test_the_fitted_cost_model_is_kept_for_each_device(tmp_path: Path) -> None:
    paths = {
        Settings.with_options(cache_dir=tmp_path, device=device).engine_process.engine.cost_fit_path
        for device in (None, "cpu", "cuda:1")
    }
    assert len(paths) == 3


def test_the_fitted_cost_model_is_kept_for_each_way_of_sharing(tmp_path: Path) -> None:
    ways: list[dict[str, Any]] = [
        {},
        {"gpus": 2},
        {"gpus": 4},
        {"gpus": 4, "parallel": "tensor=4"},
        {"gpus": 4, "parallel": "tensor=2,sequence=2"},
    ]
    paths = {
        Settings.with_options(cache_dir=tmp_path, **way).engine_process.engine.cost_fit_path for way in ways
    }
    assert len(paths) == len(ways)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"port": 65_536}, "port=65536: must be a whole number from 0 to 65535"),
        ({"server": "nowhere"}, "server='nowhere': .*is not a URL"),
        ({"server": "http://host:99999"}, "server='http://host:99999': port out of range"),
        ({"server": "http://host:0"}, "server='http://host:0': .*is not a URL"),
        ({"max_jobs": 0, "gpus": 0}, "max_jobs=0|gpus=0"),
        ({"plans": {"gold": {"weight": 0}}}, "plan"),
    ],
)
def test_a_bad_value_is_one_line_that_names_the_setting(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidParams, match=message) as refused:
        Settings.with_options(**options)
    assert len(str(refused.value).splitlines()) == 1


def test_a_bad_variable_is_one_line_that_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIFFUSERVE_PORT", "many")
    with pytest.raises(InvalidParams, match="DIFFUSERVE_PORT='many': must be a whole number from 0 to 65535"):
        Settings.with_options()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("PORT", "70000", "must be a whole number from 0 to 65535"),
        ("MAX_JOBS", "0", "must be a whole number of at least 1"),
        ("LEASE_SECONDS", "soon", "must be a number above 0"),
        ("FILE_METADATA", "perhaps", "must be true or false"),
        ("LOG_LEVEL", "loud", "must be debug, info, warning or error"),
        ("PROMPT_FILTER_DOWN", "x", "must be fail_closed or fail_open"),
        ("PLANS", "gold", "must be JSON"),
        ("SERVER", "nowhere", "'nowhere' is not a URL"),
    ],
)
def test_a_bad_variable_is_named_with_its_value_and_what_is_valid(
    name: str, value: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"DIFFUSERVE_{name}", value)
    with pytest.raises(InvalidParams) as refused:
        Settings.with_options()
    assert str(refused.value).startswith(f"DIFFUSERVE_{name}='{value}': ")
    assert expected in str(refused.value)


def test_words_of_the_log_may_be_capitals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIFFUSERVE_LOG_LEVEL", "DEBUG")
    assert Settings().logs.log_level is LogLevel.DEBUG


def test_settings_survive_pickling() -> None:
    """Replicas of a worker are started by processes that receive their configuration pickled."""
    settings = Settings.with_options(token_budget=512, image_rules={"nsfw": {"threshold": 0.5}})
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert pickle.loads(pickle.dumps(settings.worker)) == settings.worker


def test_a_default_told_in_words_is_chosen_at_run_time() -> None:
    told = {name: field for name, field in Settings.model_fields.items() if described(field)[1]}
    assert "device" in told
    assert {
        name for name, field in told.items() if field.default_factory is None and field.default is not None
    } == set()


def test_a_model_has_one_cost_fit_whatever_its_name() -> None:
    short, full = (
        Settings.with_options(model=name).engine_process.engine.cost_fit_path
        for name in ("flux-dev", "black-forest-labs/FLUX.1-dev")
    )
    assert short == full


@pytest.mark.parametrize(
    ("options", "lets_out"),
    [({}, False), ({"allow_unjudged_audio": True}, True), ({"image_filter": "none"}, True)],
)
def test_sounds_leave_beside_an_image_filter_only_if_that_is_allowed(
    options: dict[str, object], lets_out: bool
) -> None:
    config = Settings.with_options(**options).api_config(auth=True)
    assert config.lets_sounds_out is lets_out
