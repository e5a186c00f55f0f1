"""`diffuserve moderate`: a text classifier behind OpenAI's moderation API, and who asks it."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from safetensors.torch import load_file, save_file

from diffuserve.api.server.http_server import serving
from diffuserve.cli import main as cli
from diffuserve.cli.servers.listening import address_of, listen
from diffuserve.domain.errors import InvalidModel
from diffuserve.safety.classifiers.text_checkpoint import TextCheckpoint
from diffuserve.safety.moderation_api.app import create_moderation_app
from diffuserve.safety.moderation_api.client import ModerationClassifier
from diffuserve.safety.moderation_api.limits import ModerationLimits
from support.text_classifiers import write_text_checkpoint
from support.waiting import HANG_SECONDS, eventually

LABELS = ("OK", "sexual", "hate/threatening", "violence")
PROMPTS = ("a red circle", "a blue dog a gun", "", "what is not known")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_checkpoint(tmp_path_factory.mktemp("checkpoint"), LABELS)


def pipeline_scores(folder: Path, text: str) -> dict[str, float]:
    from transformers import pipeline

    classify = pipeline("text-classification", model=str(folder), top_k=None)
    return {entry["label"]: entry["score"] for entry in classify([text])[0]}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("problem", "labels"),
    [
        ("multi_label_classification", LABELS),
        ("single_label_classification", LABELS),
        (None, LABELS),
        (None, ("toxic",)),
    ],
)
def test_scores_are_those_of_transformers_own_pipeline(
    problem: Any, labels: tuple[str, ...], seed: int, tmp_path: Path
) -> None:
    write_text_checkpoint(tmp_path, labels, problem=problem, seed=seed)
    checkpoint = TextCheckpoint(tmp_path)
    for text in PROMPTS:
        assert checkpoint.scores(text) == pytest.approx(pipeline_scores(tmp_path, text), abs=1e-6)


def test_every_part_of_a_long_text_is_scored(tmp_path: Path) -> None:
    checkpoint = TextCheckpoint(write_text_checkpoint(tmp_path, LABELS, max_tokens=18))
    parts = ["a red circle a blue circle a red cat a blue dog a red circle a", "gun nude gun nude"]
    first, last = (checkpoint.scores(part) for part in parts)
    both = checkpoint.scores(" ".join(parts))
    assert all(both[label] >= first[label] - 1e-6 for label in LABELS), "the first window is the first part"
    assert both != pytest.approx(first)
    assert last.keys() == both.keys()


@pytest.fixture
async def served(folder: Path) -> AsyncIterator[str]:
    app = create_moderation_app(TextCheckpoint(folder), ModerationLimits(4, 100, 8), ["OK"])
    listener = listen("127.0.0.1", 0)
    async with serving(app, listener):
        yield address_of(listener)
    listener.close()


async def test_the_classifier_reads_what_moderate_serves(served: str, folder: Path) -> None:
    classifier = ModerationClassifier(served)
    for prompt in PROMPTS:
        theirs = pipeline_scores(folder, prompt)
        ours = {name.replace("hate/threatening", "hate"): score for name, score in theirs.items()}
        assert await classifier.scores(prompt) == pytest.approx(ours, abs=1e-6)
    await classifier.close()


def test_labels_with_the_same_name_share_a_score(folder: Path, tmp_path: Path) -> None:
    copy_files(folder, tmp_path, but="")
    names = {"OK": "fine", "sexual": "nsfw", "violence": "nsfw"}
    (tmp_path / "diffuserve.json").write_text(json.dumps({"labels": names}))
    own, found = TextCheckpoint(folder).scores("a gun"), TextCheckpoint(tmp_path).scores("a gun")
    largest = max(own["sexual"], own["violence"])
    assert found == {"fine": own["OK"], "nsfw": largest, "hate/threatening": own["hate/threatening"]}


async def test_openais_own_client_parses_the_response(served: str, folder: Path) -> None:
    async with openai.AsyncOpenAI(base_url=f"{served}/v1", api_key="any", max_retries=0) as client:
        answer = await client.moderations.create(input=["a red circle", "a gun"])
    assert answer.id.startswith("modr-")
    assert answer.model == folder.name
    assert len(answer.results) == 2
    scores = answer.results[0].category_scores.model_dump(by_alias=True)
    expected = pipeline_scores(folder, "a red circle")
    assert {name: scores[name] for name in LABELS} == pytest.approx(expected, abs=1e-6)


async def test_harmless_labels_flag_nothing(served: str) -> None:
    async with httpx.AsyncClient(base_url=served) as client:
        results = (await client.post("/v1/moderations", json={"input": ["a", "a gun"]})).json()["results"]
    for result in results:
        assert result["categories"]["OK"] is False
        harmful = {name: score for name, score in result["category_scores"].items() if name != "OK"}
        assert result["flagged"] == any(score >= 0.5 for score in harmful.values())


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "JSON"),
        (b"[]", 400, "JSON"),
        (b"{}", 400, "JSON"),
        (b'{"input": []}', 400, "list of texts"),
        (b'{"input": [1]}', 400, "list of texts"),
        (b'{"input": {"type": "text"}}', 400, "list of texts"),
        (json.dumps({"input": ["a"] * 5}).encode(), 400, "at most 4"),
        (json.dumps({"input": "a" * 101}).encode(), 400, "at most 100"),
        (b" " * 100_000, 413, "bytes"),
    ],
)
async def test_invalid_requests_are_refused_as_openai_does(
    served: str, body: bytes, status: int, message: str
) -> None:
    async with httpx.AsyncClient(base_url=served) as client:
        answer = await client.post("/v1/moderations", content=body)
        assert (answer.status_code, answer.json()["error"]["type"]) == (status, "invalid_request_error")
        assert message in answer.json()["error"]["message"]
        assert (await client.get("/healthz")).json()["status"] == "ok"


class Stuck:
    """A classifier that gives no scores before it is released, and fails for the text `fail`."""

    name = "stuck"

    def __init__(self) -> None:
        self.num_running = self.most_running = 0
        self.released = threading.Event()

    def scores(self, text: str) -> Mapping[str, float]:
        if text == "fail":
            raise ValueError("NaN")
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        assert self.released.wait(HANG_SECONDS)
        self.num_running -= 1
        return {"hate": 0.0}


async def post(client: httpx.AsyncClient, text: str) -> int:
    return (await client.post("/v1/moderations", json={"input": text})).status_code


async def test_waiting_requests_are_limited_and_calls_do_not_overlap() -> None:
    stuck = Stuck()
    app = create_moderation_app(stuck, ModerationLimits(max_waiting=2))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
        calls = [asyncio.create_task(post(client, "a")) for _ in range(4)]
        await eventually(lambda: sum(call.done() for call in calls) == 2)
        stuck.released.set()
        assert sorted(await asyncio.gather(*calls)) == [200, 200, 503, 503]
        assert stuck.most_running == 1
        assert await post(client, "fail") == 500
        assert await post(client, "a") == 200, "one text's failure fails that text alone"


def test_pickled_weights_are_refused(folder: Path, tmp_path: Path) -> None:
    copy_files(folder, tmp_path, but="model.safetensors")
    torch.save(load_file(folder / "model.safetensors"), tmp_path / "pytorch_model.bin")
    with pytest.raises(InvalidModel, match="only pickled weights"):
        TextCheckpoint(tmp_path)


def test_weights_that_lack_the_classifier_are_refused(folder: Path, tmp_path: Path) -> None:
    copy_files(folder, tmp_path, but="model.safetensors")
    weights = load_file(folder / "model.safetensors")
    weights = {name: tensor for name, tensor in weights.items() if not name.startswith("classifier")}
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(InvalidModel, match=r"lack classifier\.bias"):
        TextCheckpoint(tmp_path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"architectures": ["BertModel"]}, "BertModel"),
        ({"architectures": None}, "no architecture"),
        ({"auto_map": {"AutoModel": "code.Model"}}, "Python code"),
        ({"problem_type": "regression"}, "regression"),
        ({"model_type": "unheard-of"}, "cannot load it"),
    ],
)
def test_another_kind_of_checkpoint_is_refused(
    folder: Path, changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    copy_files(folder, tmp_path, but="config.json")
    config = json.loads((folder / "config.json").read_text()) | changed
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidModel, match=message):
        TextCheckpoint(tmp_path)


def copy_files(source: Path, target: Path, but: str) -> None:
    for file in source.iterdir():
        if file.name != but:
            (target / file.name).write_bytes(file.read_bytes())


MODERATE = [sys.executable, "-m", "diffuserve", "moderate"]


@pytest.fixture(scope="module")
def process(folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [*MODERATE, str(folder), "--port", "0", "--harmless", "OK", "--max-inputs", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


async def test_the_command_serves_until_it_is_stopped(process: subprocess.Popen[str], folder: Path) -> None:
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    assert address.startswith("http://127.0.0.1:")
    classifier = ModerationClassifier(address)
    found = await classifier.scores("a gun")
    await classifier.close()
    assert found["violence"] == pytest.approx(pipeline_scores(folder, "a gun")["violence"], abs=1e-6)
    assert httpx.post(f"{address}/v1/moderations", json={"input": ["a"] * 3}).status_code == 400
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=HANG_SECONDS) == 0


@pytest.mark.parametrize(
    ("folder_is", "harmless", "message"),
    [
        ("empty", "OK", "config.json is missing"),
        ("a classifier", "fine", "the classifier's labels are OK, sexual, hate/threatening, violence"),
    ],
)
def test_an_error_is_a_single_line_with_exit_code_2(
    folder_is: str,
    harmless: str,
    message: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = tmp_path if folder_is == "empty" else folder
    monkeypatch.setattr(sys, "argv", ["diffuserve", "moderate", str(shown), "--harmless", harmless])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    errors = capsys.readouterr().err
    assert errors.startswith("error: ")
    assert message in errors
    assert errors.count("\n") == 1
