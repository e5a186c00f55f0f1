"""The worker's pure decisions: is the engine stuck, how much may be claimed, what is said on the pipe."""

import sys
from pathlib import Path

import pytest

from diffuserve.domain.errors import (
    InvalidParams,
    NumericalFailure,
    OutOfMemory,
    OutputBlocked,
    RequestFailed,
)
from diffuserve.engine.config import EngineConfig
from diffuserve.worker import messages
from diffuserve.worker.capacity import Capacity, Memory, free_capacity, read_memory
from diffuserve.worker.config import EngineProcessConfig, ImageOptions, Nodes, WorkerConfig
from diffuserve.worker.engine_process import parse_arguments
from diffuserve.worker.job_output import job_failure, preview_steps
from diffuserve.worker.watchdog import Pulse, stall_reason

CONFIG = WorkerConfig(server="http://x", stall_seconds=60.0, silence_seconds=10.0)


def test_an_engine_that_moves_is_not_stuck() -> None:
    assert stall_reason(Pulse(heartbeat_at=99.0, progress_at=50.0), True, 100.0, CONFIG) is None


def test_an_idle_engine_need_not_move() -> None:
    assert stall_reason(Pulse(heartbeat_at=99.0, progress_at=0.0), False, 100.0, CONFIG) is None


def test_an_occupied_engine_that_moves_nothing_is_stuck() -> None:
    assert "no progress" in str(stall_reason(Pulse(heartbeat_at=99.0, progress_at=30.0), True, 100.0, CONFIG))


def test_a_silent_engine_is_stuck_whatever_it_does() -> None:
    assert "no heartbeat" in str(
        stall_reason(Pulse(heartbeat_at=89.0, progress_at=99.0), False, 100.0, CONFIG)
    )


def test_long_steps_earn_patience() -> None:
    pulse = Pulse(heartbeat_at=99.0, progress_at=0.0, longest_step_seconds=11.0)
    assert stall_reason(pulse, True, 100.0, CONFIG) is None
    assert stall_reason(pulse, True, 111.0, WorkerConfig(server="", silence_seconds=99.0)) is not None


def test_a_beat_counts_as_a_move_only_when_something_moved() -> None:
    pulse = Pulse(heartbeat_at=0.0, progress_at=0.0, num_moves=3)
    assert (
        pulse.after_heartbeat(messages.EngineHeartbeat(num_moves=3, num_unfinished=1), 5.0).progress_at == 0.0
    )
    assert (
        pulse.after_heartbeat(messages.EngineHeartbeat(num_moves=4, num_unfinished=1), 5.0).progress_at == 5.0
    )


@pytest.mark.parametrize(
    ("tokens", "finishing", "room"),
    [
        ([], 0, Capacity(4, 200)),
        ([60, 60], 0, Capacity(2, 80)),
        ([60] * 4, 0, Capacity(0, 0)),
        ([], 15, Capacity(1, 200)),
        ([], 16, Capacity(0, 0)),
        ([150, 60], 0, Capacity(0, 0)),
    ],
)
def test_room_is_for_one_step_beyond_the_running_one(
    tokens: list[int], finishing: int, room: Capacity
) -> None:
    assert free_capacity(4, 100, tokens, finishing) == room


def test_memory_is_short_from_the_fraction_on() -> None:
    assert not Memory(94, 100).is_short(0.95)
    assert Memory(95, 100).is_short(0.95)
    assert not Memory(95, 0).is_short(0.95), "no limit is known"


def test_memory_of_a_dead_engine_counts_nothing() -> None:
    alone, with_ghost = read_memory(None), read_memory(2**22 - 1)
    assert with_ghost.used == pytest.approx(alone.used, rel=0.2)
    assert alone.used < alone.limit


@pytest.mark.parametrize(
    ("steps", "previews", "shown"),
    [(4, 0, []), (4, 1, [2]), (4, 3, [1, 2, 3]), (1, 3, []), (2, 3, [1]), (20, 3, [5, 10, 15])],
)
def test_previews_are_spread_and_never_the_last_step(steps: int, previews: int, shown: list[int]) -> None:
    assert preview_steps(steps, previews) == shown


@pytest.mark.parametrize(
    ("error", "code", "retryable"),
    [
        (InvalidParams("width", 7, "no"), "invalid_params", False),
        (NumericalFailure("r", "NaN"), "numerical_failure", False),
        (OutOfMemory("r", "too large"), "out_of_memory", False),
        (OutputBlocked("r", "nsfw"), "output_blocked", False),
        (RequestFailed("r", "odd"), "request_failed", True),
        (RuntimeError("odd"), "internal_error", True),
    ],
)
def test_only_what_may_go_better_is_tried_again(error: Exception, code: str, retryable: bool) -> None:
    failed = job_failure("job", error)
    assert (failed.code, failed.retryable) == (code, retryable)


@pytest.mark.parametrize(
    "message",
    [
        messages.ModelAnnounced(spec={"name": "x"}, fit=None),
        messages.EngineHeartbeat(num_moves=1, num_unfinished=2),
        messages.JobFinished(
            attempt="j",
            files=(
                messages.FinishedFile(path="/p", name="0.png", content_type="image/png", width=1, height=2),
            ),
            warnings=("w",),
            safety={"image": {"filter": {"name": "opennsfw"}, "verdicts": []}},
        ),
        messages.EngineReady(token_budget=1, image_filter={"name": "opennsfw", "thresholds": {"nsfw": 0.8}}),
        messages.FilterVerdict(attempt="j", stage="preview", action="allow", category="", seconds=0.01),
        messages.AddJob(attempt="j", input={"prompt": "ü"}, folder="/f"),
        messages.StopEngine(),
    ],
)
def test_messages_survive_the_pipe(message: messages.Message) -> None:
    line = messages.encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert messages.decode(line) == message


def test_what_is_no_message_is_refused() -> None:
    with pytest.raises(ValueError, match="not a message"):
        messages.decode(b'{"kind": "gossip"}')


def test_command_starts_one_engine_process_with_its_configuration() -> None:
    config = EngineProcessConfig(model="m", device="cpu")
    command = WorkerConfig(server="", engine_process=config).command
    assert command[1:] == ("-m", "diffuserve.worker.engine_process", "--config", config.to_json())
    assert WorkerConfig(server="", engine_command=("run", "it")).command == ("run", "it")


@pytest.mark.parametrize(
    ("nodes", "where"), [(None, "--standalone"), (Nodes(2, 1, "host", 29_500), "--node-rank=1")]
)
def test_command_of_several_gpus_goes_through_torchrun(nodes: Nodes | None, where: str) -> None:
    command = WorkerConfig(server="", gpus=4, nodes=nodes).command
    assert command[2] == "torch.distributed.run"
    assert {where, "--nproc-per-node=4", "--max-restarts=0"} <= set(command)
    assert command[-2:] == ("--config", EngineProcessConfig().to_json())


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
