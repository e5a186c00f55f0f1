"""Messages between agent and engine, as lines of JSON."""

from typing import Any, get_args

import orjson
import pytest

from diffuserve.protocol import messages
from diffuserve.protocol.messages import (
    AbortJob,
    AddJob,
    CheckpointReady,
    EngineHeartbeat,
    EngineLoading,
    EngineReady,
    EngineRefused,
    FilterVerdict,
    FinishedFile,
    JobDenoised,
    JobFailed,
    JobFinished,
    LiveDropped,
    LivePart,
    Message,
    ModelAnnounced,
    PreviewReady,
    PutDownJob,
    StepProgress,
    StepTaken,
    StopEngine,
    decode,
    encode,
)
from diffuserve.protocol.peer_messages import PeerAnnounced, PeersTold
from diffuserve.protocol.zygote_messages import EngineEnded, EngineForked, ForkEngine, ZygoteReady

EXAMPLES: dict[str, Message] = {
    "hello": ModelAnnounced(spec={"name": "x"}, fit={"step": [1.0]}),
    "loading": EngineLoading(phase="weights", bytes_read=1, bytes_total=2),
    "ready": EngineReady(
        token_budget=1,
        num_gpus=2,
        device_name="H100",
        image_filter={"name": "opennsfw", "thresholds": {"nsfw": 0.8}},
    ),
    "refused": EngineRefused(reason="no room"),
    "peer": PeerAnnounced(model="ab", host="10.0.0.7", port=6881, is_complete=True),
    "peers": PeersTold(peers=[{"host": "10.0.0.8", "port": 6881}], share=[1, 2, 3]),
    "beat": EngineHeartbeat(num_moves=1, num_unfinished=2, last_step_seconds=0.5),
    "moved": StepProgress(attempt="j", phase="denoise", step=1, total=4),
    "previewed": PreviewReady(attempt="j", image=1, index=0, step=2, total=4, png="iVBO"),
    "live": LivePart(attempt="j", number=3, path="/f/live-0003.m4s"),
    "dropped": LiveDropped(attempt="j"),
    "judged": FilterVerdict(attempt="j", stage="preview", action="allow", category="", seconds=0.01),
    "done": JobFinished(
        attempt="j",
        files=(FinishedFile(path="/p", name="0.png", content_type="image/png", width=1, height=2),),
        warnings=("w",),
        safety={"image": {"filter": {"name": "opennsfw"}, "verdicts": []}},
    ),
    "denoised": JobDenoised(attempt="j", path="/f/latents", weights="ab12"),
    "kept": CheckpointReady(attempt="j", path="/f/checkpoint", step=7, seconds=0.5, is_last=True),
    "failed": JobFailed(
        attempt="j", code="aborted", message="line\nbreak", retryable=True, actual_seconds=0.5
    ),
    "add": AddJob(attempt="j", input={"prompt": "ü"}, folder="/f", is_alone=True),
    "abort": AbortJob(attempt="j"),
    "put-down": PutDownJob(attempt="j"),
    "stop": StopEngine(),
    "step": StepTaken(attempts=("job_1-1", "job_2-1"), began_at=1.5, seconds=0.25),
    "zygote": ZygoteReady(),
    "fork": ForkEngine(config="{}", socket="/s"),
    "forked": EngineForked(pid=7),
    "ended": EngineEnded(pid=7, code=-9),
}


@pytest.mark.parametrize("message", EXAMPLES.values(), ids=EXAMPLES.keys())
def test_a_message_is_one_line_and_decodes_to_itself(message: Message) -> None:
    line = encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode(line) == message


@pytest.mark.parametrize(("kind", "message"), EXAMPLES.items())
def test_a_message_keeps_its_name_on_the_wire(kind: str, message: Message) -> None:
    assert orjson.loads(encode(message))["kind"] == kind


def test_every_message_has_a_name_on_the_wire() -> None:
    assert set(messages._KINDS.values()) == set(get_args(Message))
    assert set(EXAMPLES) == set(messages._KINDS)


@pytest.mark.parametrize("values", [{"kind": "gossip"}, {}, {"kind": None}])
def test_a_line_of_no_known_kind_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a message"):
        decode(orjson.dumps(values))
