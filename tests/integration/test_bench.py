"""Servers under load that speak the APIs of others, on real sockets, and what becomes of their faults."""

import base64
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from diffuserve.bench import http as http_module
from diffuserve.bench.http import Http
from diffuserve.bench.load_request import LoadKind, LoadRequest
from diffuserve.bench.outcomes import Output, RequestFault, Trouble
from diffuserve.bench.playing import Player
from diffuserve.bench.targets import Address, TargetOptions, make_target
from support.http_request import ReceivedRequest
from support.image_files import file_of
from support.scripted_server import Reply, ScriptedServer, listening

PICTURE = file_of(Image.linear_gradient("L").resize((64, 48)))
BASE64 = base64.b64encode(PICTURE).decode()
ASKED = LoadRequest(
    label="all",
    prompt="a fox",
    width=64,
    height=48,
    fields={"num_inference_steps": 4, "seed": 7, "num_images": 1},
)
CLIP = LoadRequest(label="clip", prompt="a fox", kind=LoadKind.CLIP, fields={"num_frames": 17})


class Played(ScriptedServer):
    """A server whose replies follow the path."""

    def __init__(self, replies: dict[str, Any]) -> None:
        super().__init__()
        self._replies = replies

    def reply_to(self, request: ReceivedRequest) -> Reply | None:
        found = self._replies[request.path.partition("?")[0]]
        content = found.pop(0) if isinstance(found, list) else found
        return content if content is None or isinstance(content, Reply) else Reply(content)


async def drawn(
    kind: str, replies: dict[str, Any], asked: LoadRequest = ASKED, **options: Any
) -> tuple[Any, Played]:
    async with listening(Played(replies)) as server:
        http = Http(server.url, "secret", 30.0)
        try:
            target = make_target(Address(kind, server.url), TargetOptions(**options))
            return await target.draw(http, asked), server
        finally:
            await http.close()


@pytest.mark.parametrize("kind", ["openai", "sglang", "vllm-omni"])
async def test_images_of_openais_api(kind: str) -> None:
    reply, server = await drawn(kind, {"/v1/images/generations": {"data": [{"b64_json": BASE64}]}})
    assert reply.outputs == (Output(PICTURE),)
    body = server.requests[0].json
    assert (body["prompt"], body["size"], body["n"]) == ("a fox", "64x48", 1)
    assert body.get("seed") == (None if kind == "openai" else 7)  # OpenAI's own refuses what it does not know
    assert server.requests[0].headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("kind", "sent"), [("sglang", "application/json"), ("vllm-omni", "multipart/form-data")]
)
async def test_clips_of_openais_api(kind: str, sent: str) -> None:
    replies = {
        "/v1/videos": {"id": "v1", "status": "queued"},
        "/v1/videos/v1": [{"id": "v1", "status": "in_progress"}, {"id": "v1", "status": "completed"}],
        "/v1/videos/v1/content": Reply(b"0000ftypmp42"),
    }
    reply, server = await drawn(kind, replies, CLIP)
    assert reply.outputs == (Output(b"0000ftypmp42"),)
    first = server.requests[0]
    assert first.headers["content-type"].startswith(sent)
    assert all(part in first.body for part in (b"a fox", b"num_frames", b"17"))


async def test_a1111() -> None:
    reply, server = await drawn("a1111", {"/sdapi/v1/txt2img": {"images": [BASE64]}}, model="sdxl")
    assert reply.outputs == (Output(PICTURE),)
    body = server.requests[0].json
    assert (body["steps"], body["batch_size"]) == (4, 1)
    assert body["override_settings"] == {"sd_model_checkpoint": "sdxl"}


async def test_comfyui() -> None:
    saved = {"images": [{"filename": "a.png", "subfolder": "", "type": "output"}]}
    replies = {
        "/prompt": {"prompt_id": "p1"},
        "/history/p1": [{}, {"p1": {"status": {"status_str": "success"}, "outputs": {"9": saved}}}],
        "/view": Reply(PICTURE),
    }
    reply, server = await drawn("comfyui", replies)
    assert reply.outputs == (Output(PICTURE),)
    assert server.requests[0].json["prompt"]["3"]["inputs"]["steps"] == 4


async def test_any_other_by_a_template(tmp_path: Path) -> None:
    template = tmp_path / "server.yaml"
    template.write_text(
        "path: /predict\nbody: {text: $prompt, size: [$width, $height], name: fox-$seed}\n"
        "output: images.*.data\nis: base64\n"
    )
    reply, server = await drawn("http", {"/predict": {"images": [{"data": BASE64}]}}, template=template)
    assert reply.outputs == (Output(PICTURE),)
    assert server.requests[0].json == {"text": "a fox", "size": [64, 48], "name": "fox-7"}


@pytest.mark.parametrize(
    ("reply", "trouble"),
    [
        (None, Trouble.BROKEN),
        (Reply({"data": []}, is_cut=True), Trouble.BROKEN),
        (Reply({"error": {"code": "queue_full"}}, status=429), Trouble.OVERLOADED),
        (Reply({"error": {"message": "no such size"}}, status=400), Trouble.REFUSED),
        (Reply({"data": []}), Trouble.WRONG_OUTPUT),
        (Reply({"nothing": 1}), Trouble.BROKEN),
        (Reply(b"[" * 100_000), Trouble.BROKEN),
        (Reply({"data": [{"url": "http://a:port/"}]}), Trouble.BROKEN),
        (Reply(b"x", headers={"content-encoding": "gzip"}), Trouble.BROKEN),
        (Reply(b"", is_endless=True), Trouble.BROKEN),
    ],
    ids=[
        "closed",
        "half-closed",
        "overloaded",
        "refused",
        "empty",
        "unexpected",
        "deep",
        "no URL",
        "no gzip",
        "endless",
    ],
)
async def test_faults_of_a_server_are_told_by_kind(
    reply: Reply | None, trouble: Trouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_module, "_MAX_BYTES", 2**20)
    async with listening(ScriptedServer(always=reply)) as server:
        http = Http(server.url, None, 30.0)
        target = make_target(Address("openai", server.url), TargetOptions())
        played = await Player(lambda asked: target.draw(http, asked), 30.0).play_closed(iter([ASKED] * 3), 1)
        await http.close()
    assert [each.error and each.error.trouble for each in played.outcomes] == [trouble] * 3


async def test_a_server_that_is_away_cannot_be_connected() -> None:
    with pytest.raises(RequestFault) as caught:
        await Http("http://127.0.0.1:9", None, 5.0).send("GET", "/")
    assert caught.value.trouble is Trouble.CONNECT
