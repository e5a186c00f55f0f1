"""The engine process is started with the configuration of its agent."""

import sys
from pathlib import Path

import pytest

from diffuserve.agent.config import WorkerConfig
from diffuserve.engine.config import EngineConfig
from diffuserve.engine_process.ranks.launcher import parse_options
from diffuserve.engine_process.start.main import parse_arguments
from diffuserve.protocol.config import EngineProcessConfig, ImageOptions
from diffuserve.protocol.nodes import Nodes


def test_command_starts_one_engine_process_with_its_configuration() -> None:
    config = EngineProcessConfig(model="m", device="cpu")
    command = WorkerConfig(server="", engine_process=config).command
    assert command[1:] == ("-m", "diffuserve.engine_process.start.main", "--config", config.to_json())
    assert WorkerConfig(server="", engine_command=("run", "it")).command == ("run", "it")


_TWO = Nodes(2, 1, "10.0.0.7", 29_500, Path("/run/secret"))


@pytest.mark.parametrize(
    ("nodes", "where"),
    [(None, (1, 0, None, None, None)), (_TWO, (2, 1, "10.0.0.7", 29_500, Path("/run/secret")))],
)
def test_command_of_several_gpus_goes_through_the_launcher(
    nodes: Nodes | None, where: tuple[object, ...]
) -> None:
    command = WorkerConfig(server="", gpus=4, nodes=nodes).command
    assert command[2] == "diffuserve.engine_process.ranks.launcher"
    mark = command.index("--")
    told = parse_options(command[3:mark])
    assert told.ranks == 4
    assert (told.nodes, told.node_rank, told.host, told.port, told.secret_file) == where
    assert command[mark + 1 :] == (
        *("-m", "diffuserve.engine_process.start.main", "--config", EngineProcessConfig().to_json()),
    )


@pytest.mark.parametrize(
    "config",
    [
        EngineProcessConfig(),
        EngineProcessConfig(images=ImageOptions(image_filter="none", file_metadata=False)),
        EngineProcessConfig(images=ImageOptions(image_rules={"nsfw": {"threshold": 0.5, "action": "blur"}})),
        EngineProcessConfig(
            device="cuda:1",
            dtype="float16",
            parallel="sequence=2",
            collective_seconds=20.0,
            engine=EngineConfig(token_budget=512, deterministic=True, cost_fit_path=Path("/cache/fit.json")),
        ),
    ],
)
def test_engine_process_decodes_the_configuration_that_its_agent_sent(
    config: EngineProcessConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, *arguments = WorkerConfig(server="", engine_process=config).command
    monkeypatch.setattr(sys, "argv", arguments)
    assert EngineProcessConfig.from_json(parse_arguments().config) == config


def test_secrets_stay_off_the_command_line_of_the_engine() -> None:
    config = WorkerConfig(server="https://server", api_key="s3cret")
    assert "s3cret" not in " ".join(config.command) + repr(config)
