"""`diffuserve worker`: what its options make of a worker's configuration."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from diffuserve.agent.config import WorkerConfig
from diffuserve.agent.spot.base import Spot
from diffuserve.cli.servers.worker import labels_of, nodes_of
from diffuserve.domain.errors import InvalidParams
from diffuserve.protocol.nodes import Nodes
from support.command import Invoke

Started = list[WorkerConfig]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """The workers that the command would run."""
    configs: Started = []

    def run(config: WorkerConfig) -> int:
        configs.append(config)
        return 7

    def run_replicas(replicas: Sequence[WorkerConfig]) -> int:
        configs.extend(replicas)
        return 7

    monkeypatch.setattr("diffuserve.cli.preflight.check_worker", lambda *_: None)
    monkeypatch.setattr("diffuserve.wiring.worker.run", run)
    monkeypatch.setattr("diffuserve.wiring.worker.run_replicas", run_replicas)
    return configs


def test_options_become_the_configuration_of_the_worker(invoke: Invoke, started: Started) -> None:
    arguments = ["--server", "http://10.0.0.1:8000", "--model", "m", "--device", "cuda:1"]
    arguments += [
        "--name",
        "ada",
        "--label",
        "zone=a",
        "--label",
        "gpu=h200",
        "--price",
        "2.5",
        "--spot",
        "gcp",
    ]
    arguments += ["--metrics-port", "9100", "--heartbeat-seconds", "2", "--max-jobs", "3"]
    assert invoke("worker", *arguments).code == 7, "the exit code is the worker's"
    [config] = started
    assert (config.server, config.name, config.max_jobs) == ("http://10.0.0.1:8000", "ada", 3)
    assert config.labels == {"zone": "a", "gpu": "h200"}
    assert (config.price_per_hour, config.spot) == (2.5, Spot.GCP)
    assert (config.metrics_port, config.heartbeat_seconds) == (9100, 2.0)
    assert (config.engine_process.model, config.engine_process.device) == ("m", "cuda:1")


def test_engine_options_reach_the_engine_process(invoke: Invoke, started: Started) -> None:
    invoke("worker", "--token-budget", "512", "--deterministic", "--no-metadata", "--memory-fraction", "0.5")
    [config] = started
    assert config.engine_process.engine.token_budget == 512
    assert config.engine_process.engine.deterministic
    assert not config.engine_process.images.file_metadata
    assert config.memory_fraction == 0.5
    assert config.engine_process.to_json() in config.command


def test_a_command_in_place_of_the_engine_is_split_as_a_shell_does(invoke: Invoke, started: Started) -> None:
    invoke("worker", "--engine-command", "python -c 'print(1)'")
    assert started[0].command == ("python", "-c", "print(1)")


def test_the_key_comes_from_the_settings_but_that_of_a_servers_own_worker(
    invoke: Invoke, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIFFUSERVE_API_KEY", "from-environment")
    invoke("worker")
    invoke("worker", "--key", "from-option")
    invoke("worker", "--parent-fd", "7")
    assert [config.api_key for config in started] == ["from-environment", "from-option", None]
    assert started[-1].parent_fd == 7


def test_a_worker_of_several_models_has_an_engine_process_for_each(invoke: Invoke, started: Started) -> None:
    words = ("--model", "a", "--model", "b", "--model", "c", "--resident-bytes", "100", "--dtype", "fp16")
    invoke("worker", *words, "--device", "cpu")
    invoke("worker", *words, "--device", "cpu", "--replicas", "2")
    for config in started:
        assert [process.model for process in config.engine_processes] == ["a", "b", "c"]
        assert {process.dtype for process in config.engine_processes} == {"float16"}
        assert len({process.engine.cost_fit_path for process in config.engine_processes}) == 3
        assert config.resident_bytes == 100
    assert len(started) == 3
    refused = invoke("worker", "--model", "a", "--model", "b", "--nnodes", "2", "--node-endpoint", "h:1")
    assert refused.code == 2
    assert "a worker of several machines serves one model" in refused.err


def test_several_gpus_are_one_worker(invoke: Invoke, started: Started) -> None:
    invoke("worker", "--gpus", "4", "--collective-seconds", "20")
    [config] = started
    assert (config.gpus, config.has_ranks) == (4, True)
    assert config.engine_process.collective_seconds == 20.0


def test_replicas_have_a_device_a_name_and_a_port_each(invoke: Invoke, started: Started) -> None:
    invoke("worker", "--replicas", "2", "--name", "pair", "--metrics-port", "9100", "--device", "cuda")
    assert [config.engine_process.device for config in started] == ["cuda:0", "cuda:0"]
    assert [config.visible_device for config in started] == ["0", "1"]
    assert [config.name for config in started] == ["pair-0", "pair-1"]
    assert [config.metrics_port for config in started] == [9100, 9101]
    paths = {config.engine_process.engine.cost_fit_path for config in started}
    assert len(paths) == 2, "each device has its own cost fit"
    assert all(config.has_neighbors for config in started), "none may end the machine of the other"


def test_replicas_share_the_gpus_that_are_visible(
    invoke: Invoke, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-7f")
    invoke("worker", "--replicas", "2")
    assert [config.visible_device for config in started] == ["3", "GPU-7f"]
    refused = invoke("worker", "--replicas", "3")
    assert refused.code == 2
    assert "this machine has 2 CUDA device(s)" in " ".join(refused.err.split())


def test_replicas_on_a_cpu_share_it(invoke: Invoke, started: Started) -> None:
    invoke("worker", "--replicas", "2", "--device", "cpu")
    assert [config.engine_process.device for config in started] == ["cpu", "cpu"]
    assert [config.visible_device for config in started] == [None, None]
    assert [config.metrics_port for config in started] == [None, None]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--replicas", "2", "--gpus", "2"], "leave out --gpus and --nnodes"),
        (["--gpus", "0"], "gpus=0"),
        (["--image-filter", "nix"], "image_filter='nix'"),
        (["--label", "zone"], "KEY=VALUE"),
        (["--nnodes", "2", "--node-rank", "2"], "numbered 0 to 1"),
        (["--nnodes", "2"], "--node-endpoint HOST:PORT"),
        (["--memory-fraction", "0"], "memory_fraction=0"),
        (["--price", "-1"], "--price"),
        (["--spot", "azur"], "--spot"),
        (["--notice-seconds", "14"], "notice_seconds=14"),
        (["--server", "10.0.0.1"], "server='10.0.0.1'"),
    ],
)
def test_bad_options_are_refused_before_anything_is_started(
    arguments: list[str], message: str, invoke: Invoke, started: Started
) -> None:
    refused = invoke("worker", *arguments)
    assert refused.code == 2
    assert message in " ".join(refused.err.split())
    assert started == []


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    (path := tmp_path / "secret").write_text("s" * 64)
    path.chmod(0o640)
    return path


def test_several_machines_meet_at_the_first(secret_file: Path) -> None:
    assert nodes_of(1, 0, None, None) is None
    assert nodes_of(2, 1, "10.0.0.7:29500", secret_file) == Nodes(2, 1, "10.0.0.7", 29_500, secret_file)
    assert nodes_of(2, 0, "[::1]:29500", secret_file) == Nodes(2, 0, "[::1]", 29_500, secret_file)


@pytest.mark.parametrize(
    "endpoint",
    [None, "", "host", "host:", ":29500", "host:port", "host:0", "host:65536", "8.8.8.8:29500"],
)
def test_an_endpoint_that_is_none_or_that_strangers_reach_is_refused(
    endpoint: str | None, secret_file: Path
) -> None:
    with pytest.raises(InvalidParams, match="node_endpoint"):
        nodes_of(2, 0, endpoint, secret_file)


@pytest.mark.parametrize("content", [None, "short"])
def test_several_machines_need_a_secret(content: str | None, tmp_path: Path) -> None:
    (path := tmp_path / "secret").write_text(content or "")
    path.chmod(0o600)
    with pytest.raises(InvalidParams, match=r"node_secret_file=.*(--node-secret-file FILE|openssl rand)"):
        nodes_of(2, 0, "10.0.0.7:29500", None if content is None else path)


@pytest.mark.parametrize("mode", [0o644, 0o602])
def test_a_secret_that_everybody_may_read_or_write_is_none(mode: int, secret_file: Path) -> None:
    secret_file.chmod(mode)
    with pytest.raises(InvalidParams, match=r"node_secret_file=.*run: chmod o="):
        nodes_of(2, 0, "10.0.0.7:29500", secret_file)


def test_labels_are_parsed() -> None:
    assert labels_of(["zone=a", "note=x=y", "empty="]) == {"zone": "a", "note": "x=y", "empty": ""}


@pytest.mark.parametrize("word", ["zone", "=a", ""])
def test_labels_without_key_or_value_are_refused(word: str) -> None:
    with pytest.raises(InvalidParams, match="KEY=VALUE"):
        labels_of([word])
