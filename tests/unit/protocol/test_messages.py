"""Messages between agent and engine, as lines of JSON."""

from typing import get_args

import orjson
import pytest

from diffuserve.domain.models.cost import CostFit
from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.quantization import Quantization
from diffuserve.domain.models.residency import Residency
from diffuserve.domain.safety import FilterInfo
from diffuserve.domain.workers.model_orders import ModelToHave
from diffuserve.domain.workers.peers import PeerAddress, PeerAdvice, Share
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
    ModelsToHave,
    PreemptJob,
    PreviewReady,
    StepProgress,
    StepTaken,
    StopEngine,
    decode,
    encode,
)
from diffuserve.protocol.peer_messages import PeerAnnounced, PeersTold
from diffuserve.protocol.zygote_messages import EngineEnded, EngineForked, ForkEngine, ZygoteReady
from support.hand_worker import HAND_SPEC

EXAMPLES: list[Message] = [
    ModelAnnounced(spec=HAND_SPEC, fit=CostFit((0.0, 1e-5), (1.0, 0.0, 0.0, 0.0), (0.0, 1.0))),
    EngineLoading(phase="weights", bytes_read=1, bytes_total=2),
    EngineReady(
        token_budget=1,
        num_gpus=2,
        device_name="H100",
        image_filter=FilterInfo("opennsfw", "1", {"nsfw": 0.8}),
        quantization=Quantization.INT8,
        residency=Residency(Offload.LAYERS, device_bytes=2),
    ),
    EngineRefused(reason="no room"),
    ModelsToHave(models=(ModelToHave(name="tiny-sd", license="Apache-2.0", makes="images", num_bytes=2),)),
    PeerAnnounced(model="ab", host="10.0.0.7", port=6881, is_complete=True),
    PeersTold(advice=PeerAdvice((PeerAddress("10.0.0.8", 6881),), Share(1, 2, 3))),
    EngineHeartbeat(num_moves=1, num_unfinished=2, last_step_seconds=0.5),
    StepProgress(attempt="j", phase="denoise", step=1, total=4),
    PreviewReady(attempt="j", image=1, index=0, step=2, total=4, png="iVBO"),
    LivePart(attempt="j", number=3, path="/f/live-0003.m4s"),
    LiveDropped(attempt="j"),
    FilterVerdict(attempt="j", stage="preview", action="allow", category="", seconds=0.01),
    JobFinished(
        attempt="j",
        files=(FinishedFile(path="/p", name="0.png", content_type="image/png", width=1, height=2),),
        warnings=("w",),
        safety={"image": {"filter": {"name": "opennsfw"}, "verdicts": []}},
    ),
    JobDenoised(attempt="j", path="/f/latents", weights="ab12"),
    CheckpointReady(attempt="j", path="/f/checkpoint", step=7, seconds=0.5, is_last=True),
    JobFailed(attempt="j", code="aborted", message="line\nbreak", retryable=True, actual_seconds=0.5),
    AddJob(attempt="j", input={"prompt": "ü"}, folder="/f", is_alone=True),
    AbortJob(attempt="j"),
    PreemptJob(attempt="j"),
    StopEngine(),
    StepTaken(attempts=("job_1-1", "job_2-1"), began_at=1.5, seconds=0.25),
    ZygoteReady(),
    ForkEngine(config="{}", socket="/s"),
    EngineForked(pid=7),
    EngineEnded(pid=7, code=-9),
]


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_is_one_line_and_decodes_to_itself(message: Message) -> None:
    line = encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode(line) == message


def test_every_message_has_an_example() -> None:
    assert {type(message) for message in EXAMPLES} == set(get_args(Message))


def test_fields_of_a_newer_version_are_ignored_wherever_they_are() -> None:
    ready = orjson.loads(encode(EngineReady(token_budget=1)))
    ready[1] |= {"mood": "fine", "residency": ready[1]["residency"] | {"disk_bytes": 1}}
    assert decode(orjson.dumps(ready)) == EngineReady(token_budget=1)


@pytest.mark.parametrize(
    "line",
    [
        ["gossip", {}],
        ["StopEngine"],
        {"kind": "gossip"},
        {},
        ["PreemptJob", {}],
        ["EngineForked", {"pid": "x"}],
    ],
)
def test_a_line_that_is_no_message_is_refused(line: object) -> None:
    with pytest.raises(ValueError, match=r"not a message|validation error"):
        decode(orjson.dumps(line))
